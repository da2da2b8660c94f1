int fixture_host(int n);
