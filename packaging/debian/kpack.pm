# `dh $@ --with kpack`, or Build-Depends: dh-sequence-kpack.
use strict;
use warnings;
use Debian::Debhelper::Dh_Lib;

insert_after('dh_install', 'dh_kpack');

1
