/* Loads a kernel from an archive of kernels, without a marker:
 *
 *     hipcc --genco --offload-arch=gfx942 -o add.hsaco add.hip
 *     kpack create vec_kernels_gfx942.kpack --arch gfx942 add.hsaco
 *     cc load.c $(pkg-config --cflags --libs rocm-kpack) -lamdhip64 -o load
 *     ./load vec_kernels_gfx942.kpack gfx942
 */

#include <rocm_kpack/kpack.h>

#include <stdio.h>
#include <stdlib.h>

/* What a C program needs of <hip/hip_runtime_api.h>. */
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
int hipModuleLoadData(hipModule_t *module, const void *image);
int hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
int hipModuleUnload(hipModule_t module);

static int failed(const char *what, int code) {
    fprintf(stderr, "load: %s failed with %d\n", what, code);
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: load ARCHIVE TARGET\n");
        return 2;
    }
    kpack_archive_t archive;
    kpack_error_t error = kpack_open(argv[1], &archive);
    if (error != KPACK_SUCCESS) {
        return failed("kpack_open", error);
    }
    void *code;
    size_t size;
    error = kpack_get_kernel(archive, "add.hsaco", argv[2], &code, &size);
    kpack_close(archive);
    if (error != KPACK_SUCCESS) {
        return failed("kpack_get_kernel", error);
    }
    hipModule_t module;
    int result = hipModuleLoadData(&module, code);
    /* The HIP runtime has a copy now. */
    kpack_free_kernel(code);
    if (result != 0) {
        return failed("hipModuleLoadData", result);
    }
    hipFunction_t add;
    result = hipModuleGetFunction(&add, module, "add");
    if (result != 0) {
        hipModuleUnload(module);
        return failed("hipModuleGetFunction", result);
    }
    printf("add: %zu bytes of code\n", size);
    hipModuleUnload(module);
    return EXIT_SUCCESS;
}
