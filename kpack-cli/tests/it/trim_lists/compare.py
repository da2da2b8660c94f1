"""Compares each line of the lists of installed files below some directories with its file."""

import base64
import csv
import hashlib
import json
import os
import sys


def compare(what, path, size, digest, of):
    if not os.path.exists(path):
        print(f"{what}: missing")
        return
    with open(path, "rb") as file:
        data = file.read()
    if size not in (None, "", len(data), str(len(data))):
        print(f"{what}: size {size}, found {len(data)}")
    if digest not in (None, "", of(data)):
        print(f"{what}: digest {digest}, found {of(data)}")


def of_record(data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def of_conda(data):
    return hashlib.sha256(data).hexdigest()


compared = 0
for start in sys.argv[1:]:
    for directory, _, names in os.walk(start):
        if directory.endswith(".dist-info") and "RECORD" in names:
            record = os.path.join(directory, "RECORD")
            with open(record, newline="") as file:
                for name, digest, size in csv.reader(file):
                    path = os.path.join(directory, "..", name)
                    compare(f"{record}: {name}", path, size, digest, of_record)
                    compared += 1
        for name in names if os.path.basename(directory) == "conda-meta" else ():
            meta = os.path.join(directory, name)
            with open(meta) as file:
                package = json.load(file)
            prefix = os.path.dirname(directory)
            for path in package["files"]:
                if not os.path.exists(os.path.join(prefix, path)):
                    print(f"{meta}: {path}: missing")
            for row in package["paths_data"]["paths"]:
                path = os.path.join(prefix, row["_path"])
                size, digest = row.get("size_in_bytes"), row.get("sha256_in_prefix")
                compare(f"{meta}: {row['_path']}", path, size, digest, of_conda)
                compared += 1
if not compared:
    print("no lists")
