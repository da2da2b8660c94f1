// Without device code; with the precompiled header where there is one.
#ifdef PRECOMPILED
int host() { return std::puts("host"); }
#else
int host() { return 1; }
#endif
