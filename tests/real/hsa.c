/* A stub of libhsa-runtime64 with one GPU, so that a real libamdhip64 runs where there is none.
 *
 * STUB_HSA_ISA    the ISA of the GPU, as amdgcn-amd-amdhsa--gfx1030
 * STUB_HSA_REPORT the file for the report: a line for each loaded code object (size and SHA-256), and
 *                 for each symbol that is looked up in one
 *
 * GPU memory is the host's. Kernels do not run.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ext_image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../stub-hip/sha256.h"

#define OK HSA_STATUS_SUCCESS

static const hsa_agent_t cpu = {1}, gpu = {2};
enum { CPU_POOL = 1, CPU_KERNARG_POOL, GPU_POOL, GPU_GROUP_POOL };

static const char *isa(void) {
    const char *name = getenv("STUB_HSA_ISA");
    return name ? name : "amdgcn-amd-amdhsa--gfx1030";
}

static void report(const char *what, const char *text) {
    FILE *file = fopen(getenv("STUB_HSA_REPORT"), "a");
    if (!file)
        abort();
    fprintf(file, "%s\t%s\n", what, text);
    fclose(file);
}

/* The answer to all other questions is zero, in the largest size that the attribute has. */
static hsa_status_t number(void *value, uint64_t number, size_t size) {
    memcpy(value, &number, size);
    return OK;
}

hsa_status_t hsa_init(void) { return OK; }
hsa_status_t hsa_shut_down(void) { return OK; }

hsa_status_t hsa_status_string(hsa_status_t status, const char **text) {
    (void)status;
    *text = "an error of the stub";
    return OK;
}

hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value) {
    switch (attribute) {
    case HSA_SYSTEM_INFO_VERSION_MAJOR:
    case HSA_SYSTEM_INFO_VERSION_MINOR:
        return number(value, 1, 2);
    case HSA_SYSTEM_INFO_TIMESTAMP:
    case HSA_SYSTEM_INFO_TIMESTAMP_FREQUENCY:
        return number(value, 1000000000, 8);
    default:
        return number(value, 0, 1);
    }
}

hsa_status_t hsa_system_extension_supported(uint16_t extension, uint16_t major, uint16_t minor,
                                            bool *supported) {
    (void)extension, (void)major, (void)minor;
    *supported = false;
    return OK;
}

hsa_status_t hsa_system_get_major_extension_table(uint16_t extension, uint16_t major, size_t size,
                                                  void *table) {
    (void)extension, (void)major;
    memset(table, 0, size);
    return OK;
}

hsa_status_t hsa_agent_extension_supported(uint16_t extension, hsa_agent_t agent, uint16_t major,
                                           uint16_t minor, bool *supported) {
    (void)agent;
    return hsa_system_extension_supported(extension, major, minor, supported);
}

hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
    hsa_status_t status = callback(cpu, data);
    return status == OK ? callback(gpu, data) : status;
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value) {
    int is_gpu = agent.handle == gpu.handle;
    switch ((int)attribute) {
    case HSA_AGENT_INFO_NAME:
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME: {
        memset(value, 0, 64);
        const char *name = strrchr(isa(), '-') + 1;
        memcpy(value, is_gpu ? name : "CPU", is_gpu ? strcspn(name, ":") : 3);
        return OK;
    }
    case HSA_AGENT_INFO_VENDOR_NAME:
        memset(value, 0, 64);
        memcpy(value, "stub", 4);
        return OK;
    case HSA_AGENT_INFO_DEVICE:
        return number(value, is_gpu ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU, 4);
    case HSA_AGENT_INFO_PROFILE:
        return number(value, HSA_PROFILE_BASE, 4);
    case HSA_AGENT_INFO_WAVEFRONT_SIZE:
        return number(value, 64, 4);
    case HSA_AGENT_INFO_WORKGROUP_MAX_DIM:
        memset(value, 0, 6);
        ((uint16_t *)value)[0] = ((uint16_t *)value)[1] = ((uint16_t *)value)[2] = 1024;
        return OK;
    case HSA_AGENT_INFO_GRID_MAX_DIM:
        ((uint32_t *)value)[0] = ((uint32_t *)value)[1] = ((uint32_t *)value)[2] = 0x7fffffff;
        return OK;
    case HSA_AGENT_INFO_CACHE_SIZE:
        memset(value, 0, 16);
        return OK;
    case HSA_AGENT_INFO_ISA:
        return number(value, 1, 8);
    case HSA_AMD_AGENT_INFO_UUID:
        memcpy(value, "GPU-0000000000000001", 21);
        return OK;
    case HSA_AMD_AGENT_INFO_HDP_FLUSH:
        memset(value, 0, 16);
        return OK;
    case HSA_AMD_AGENT_INFO_SVM_DIRECT_HOST_ACCESS:
        return number(value, 0, 1);
    case HSA_AGENT_INFO_VERSION_MAJOR:
    case HSA_AGENT_INFO_VERSION_MINOR:
        return number(value, 1, 2);
    case HSA_AGENT_INFO_QUEUES_MAX:
    case HSA_AGENT_INFO_QUEUE_MAX_SIZE:
    case HSA_AGENT_INFO_WORKGROUP_MAX_SIZE:
    case HSA_AGENT_INFO_GRID_MAX_SIZE:
        return number(value, 1024, 4);
    case HSA_AMD_AGENT_INFO_CACHELINE_SIZE:
        return number(value, 64, 4);
    default: /* Compute units, SIMDs, clocks: all have four bytes. */
        return number(value, 4, 4);
    }
}

hsa_status_t hsa_agent_iterate_isas(hsa_agent_t agent, hsa_status_t (*callback)(hsa_isa_t, void *),
                                    void *data) {
    (void)agent;
    return callback((hsa_isa_t){1}, data);
}

hsa_status_t hsa_isa_get_info_alt(hsa_isa_t unused, hsa_isa_info_t attribute, void *value) {
    (void)unused;
    if (attribute == HSA_ISA_INFO_NAME_LENGTH)
        return number(value, strlen(isa()) + 1, 4);
    if (attribute == HSA_ISA_INFO_NAME)
        strcpy(value, isa());
    return OK;
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(
    hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data) {
    uint64_t first = agent.handle == gpu.handle ? GPU_POOL : CPU_POOL;
    hsa_status_t status = callback((hsa_amd_memory_pool_t){first}, data);
    return status == OK ? callback((hsa_amd_memory_pool_t){first + 1}, data) : status;
}

hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool,
                                          hsa_amd_memory_pool_info_t attribute, void *value) {
    switch (attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_SEGMENT:
        return number(value,
                      pool.handle == GPU_GROUP_POOL ? HSA_AMD_SEGMENT_GROUP : HSA_AMD_SEGMENT_GLOBAL, 4);
    case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS: {
        int fine = HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED;
        int flags = pool.handle == CPU_KERNARG_POOL
                        ? fine | HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT
                    : pool.handle == CPU_POOL ? fine
                                              : HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED;
        return number(value, flags, 4);
    }
    case HSA_AMD_MEMORY_POOL_INFO_SIZE:
    case HSA_AMD_MEMORY_POOL_INFO_ALLOC_MAX_SIZE:
        return number(value, 1ull << 32, 8);
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_GRANULE:
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALIGNMENT:
        return number(value, 4096, 8);
    default:
        return number(value, 1, 1);
    }
}

hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t agent, hsa_amd_memory_pool_t pool,
                                                hsa_amd_agent_memory_pool_info_t attribute,
                                                void *value) {
    (void)agent, (void)pool;
    if (attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_LINK_INFO)
        return OK; /* There are no hops. */
    return number(value, attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS
                             ? HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT : 0, 4);
}

hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t pool, size_t size, uint32_t flags,
                                          void **pointer) {
    (void)pool, (void)flags;
    *pointer = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return *pointer ? OK : HSA_STATUS_ERROR_OUT_OF_RESOURCES;
}

hsa_status_t hsa_amd_memory_pool_free(void *pointer) {
    free(pointer);
    return OK;
}

hsa_status_t hsa_amd_agents_allow_access(uint32_t count, const hsa_agent_t *agents,
                                         const uint32_t *flags, const void *pointer) {
    (void)count, (void)agents, (void)flags, (void)pointer;
    return OK;
}

hsa_status_t hsa_amd_profiling_async_copy_enable(bool enable) {
    (void)enable;
    return OK;
}

/* Signals are never waited for. */
hsa_status_t hsa_signal_create(hsa_signal_value_t initial, uint32_t count,
                               const hsa_agent_t *agents, hsa_signal_t *signal) {
    (void)initial, (void)count, (void)agents;
    signal->handle = (uint64_t)(uintptr_t)calloc(1, 64);
    return OK;
}

hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
    free((void *)(uintptr_t)signal.handle);
    return OK;
}

void hsa_signal_silent_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
    (void)signal, (void)value;
}

hsa_status_t hsa_code_object_reader_create_from_memory(const void *code, size_t size,
                                                       hsa_code_object_reader_t *reader) {
    char digest[65], text[100];
    sha256(code, size, digest);
    snprintf(text, sizeof text, "%zu\t%s", size, digest);
    report("code object", text);
    reader->handle = 1;
    return OK;
}

hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t reader) {
    (void)reader;
    return OK;
}

hsa_status_t hsa_executable_create_alt(hsa_profile_t profile,
                                       hsa_default_float_rounding_mode_t mode, const char *options,
                                       hsa_executable_t *executable) {
    (void)profile, (void)mode, (void)options;
    executable->handle = 1;
    return OK;
}

hsa_status_t hsa_executable_destroy(hsa_executable_t executable) {
    (void)executable;
    return OK;
}

hsa_status_t hsa_executable_load_agent_code_object(hsa_executable_t executable, hsa_agent_t agent,
                                                   hsa_code_object_reader_t reader,
                                                   const char *options,
                                                   hsa_loaded_code_object_t *loaded) {
    (void)executable, (void)agent, (void)reader, (void)options;
    if (loaded)
        loaded->handle = 1;
    return OK;
}

hsa_status_t hsa_executable_freeze(hsa_executable_t executable, const char *options) {
    (void)executable, (void)options;
    return OK;
}

hsa_status_t hsa_executable_get_symbol_by_name(hsa_executable_t executable, const char *name,
                                               const hsa_agent_t *agent,
                                               hsa_executable_symbol_t *symbol) {
    (void)executable, (void)agent;
    report("symbol", name);
    symbol->handle = 1;
    return OK;
}

hsa_status_t hsa_executable_symbol_get_info(hsa_executable_symbol_t symbol,
                                            hsa_executable_symbol_info_t attribute, void *value) {
    (void)symbol;
    if (attribute == HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_OBJECT)
        return number(value, 1, 8);
    return number(value, 0, 4);
}
