// No device code; uses the precompiled header if there is one.
#ifdef PRECOMPILED
int host() { return std::puts("host"); }
#else
int host() { return 1; }
#endif
