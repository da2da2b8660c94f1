// The functions that clang's registration code calls, so that the library links without a HIP runtime.
struct dim3 {
    unsigned x, y, z;
};

extern "C" {
int hipLaunchKernel(const void *, dim3, dim3, void **, unsigned long, void *) { return 0; }
int __hipPushCallConfiguration(dim3, dim3, unsigned long, void *) { return 0; }
int __hipPopCallConfiguration(dim3 *, dim3 *, unsigned long *, void **) { return 0; }
void **__hipRegisterFatBinary(const void *) { return nullptr; }
void __hipUnregisterFatBinary(void **) {}
void __hipRegisterFunction(void **, const void *, char *, const char *, unsigned, void *, void *,
                           void *, void *, int *) {}
}
