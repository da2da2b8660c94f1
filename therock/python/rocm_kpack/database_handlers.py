"""ROCm's build depends on a file of this name; kpack has its own table of kernel databases (`kpack artifact split --help`)."""
