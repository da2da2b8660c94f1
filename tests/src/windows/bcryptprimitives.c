/* A library of Windows that wine 8 does not have, with the one function that Rust's standard library calls. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(void *bytes, ULONG size);

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *bytes, SIZE_T size) {
    return SystemFunction036(bytes, (ULONG)size);
}
