/* A stub of libhsa-runtime64, so that a real libamdhip64 runs where there is no GPU.
 *
 * STUB_HSA_GPUS   the ISA of each GPU, separated by commas: gfx1030,gfx90a:sramecc+:xnack-
 * STUB_HSA_REPORT the file for the report: a line for each code object that is loaded (number of the GPU,
 *                 size and SHA-256), and for each symbol that is looked up in one. Without it, code objects are
 *                 only read, as the copy to a GPU would read them
 *
 * GPU memory is the host's. Queues take kernels, and run none.
 */
#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>
#include <hsa/hsa_ext_image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../stub-hip/sha256.h"

#define OK HSA_STATUS_SUCCESS

/* Agent 1 is the CPU, and 2, 3... are GPUs. The pools of agent N are 2 N and 2 N + 1. */
static const hsa_agent_t cpu = {1};
enum { FIRST_GPU = 2 };
enum { CPU_POOL = 2, CPU_KERNARG_POOL };

/* Writes the processor and features of a GPU, and returns their length. */
static size_t gpu_isa(uint64_t agent, char isa[64]) {
    const char *name = getenv("STUB_HSA_GPUS");
    for (; agent > FIRST_GPU; agent--)
        name = strchr(name, ',') + 1;
    return (size_t)snprintf(isa, 64, "%.*s", (int)strcspn(name, ","), name);
}

static void report(const char *what, const char *text) {
    const char *path = getenv("STUB_HSA_REPORT");
    if (!path)
        return;
    FILE *file = fopen(path, "a");
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
    hsa_agent_t gpu = {FIRST_GPU};
    for (const char *rest = getenv("STUB_HSA_GPUS"); rest && status == OK; gpu.handle++) {
        status = callback(gpu, data);
        rest = strchr(rest, ',');
        rest = rest ? rest + 1 : NULL;
    }
    return status;
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value) {
    int is_gpu = agent.handle != cpu.handle;
    switch ((int)attribute) {
    case HSA_AGENT_INFO_NAME:
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME: {
        char name[64] = "CPU";
        if (is_gpu)
            gpu_isa(agent.handle, name);
        name[strcspn(name, ":")] = 0;
        memset(value, 0, 64);
        strcpy(value, name);
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
        return number(value, agent.handle, 8);
    case HSA_AMD_AGENT_INFO_UUID:
        sprintf(value, "GPU-%016x", (unsigned)agent.handle);
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
    return callback((hsa_isa_t){agent.handle}, data);
}

hsa_status_t hsa_isa_get_info_alt(hsa_isa_t isa, hsa_isa_info_t attribute, void *value) {
    static const char prefix[] = "amdgcn-amd-amdhsa--";
    char name[64];
    size_t length = gpu_isa(isa.handle, name);
    if (attribute == HSA_ISA_INFO_NAME_LENGTH)
        return number(value, sizeof prefix + length, 4);
    if (attribute == HSA_ISA_INFO_NAME)
        strcat(strcpy(value, prefix), name);
    return OK;
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(
    hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data) {
    uint64_t first = 2 * agent.handle;
    hsa_status_t status = callback((hsa_amd_memory_pool_t){first}, data);
    return status == OK ? callback((hsa_amd_memory_pool_t){first + 1}, data) : status;
}

hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t pool,
                                          hsa_amd_memory_pool_info_t attribute, void *value) {
    switch (attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_SEGMENT:
        return number(value,
                      pool.handle > CPU_KERNARG_POOL && pool.handle % 2 ? HSA_AMD_SEGMENT_GROUP : HSA_AMD_SEGMENT_GLOBAL, 4);
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

hsa_status_t hsa_amd_memory_lock_to_pool(void *host, size_t size, hsa_agent_t *agents, int count,
                                         hsa_amd_memory_pool_t pool, uint32_t flags, void **gpu) {
    (void)size, (void)agents, (void)count, (void)pool, (void)flags;
    *gpu = host;
    return OK;
}

hsa_status_t hsa_amd_memory_unlock(void *host) {
    (void)host;
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

/* Without an answer to these two, ROCm 6.4 and newer report no device. */
hsa_status_t hsa_amd_memory_copy_engine_status(hsa_agent_t to, hsa_agent_t from, uint32_t *engines) {
    (void)to, (void)from;
    *engines = 1;
    return OK;
}

hsa_status_t hsa_amd_memory_get_preferred_copy_engine(hsa_agent_t to, hsa_agent_t from,
                                                      uint32_t *engines) {
    return hsa_amd_memory_copy_engine_status(to, from, engines);
}

/* ROCm 6.4 and newer call these as they start. */
hsa_status_t hsa_amd_register_system_event_handler(hsa_amd_system_event_callback_t callback,
                                                   void *data) {
    (void)callback, (void)data;
    return OK;
}

hsa_status_t hsa_amd_agent_set_async_scratch_limit(hsa_agent_t agent, size_t limit) {
    (void)agent, (void)limit;
    return OK;
}

hsa_status_t hsa_amd_enable_logging(uint8_t *flags, void *file) {
    (void)flags, (void)file;
    return OK;
}

hsa_status_t hsa_executable_iterate_symbols(
    hsa_executable_t executable,
    hsa_status_t (*callback)(hsa_executable_t, hsa_executable_symbol_t, void *), void *data) {
    (void)executable, (void)callback, (void)data;
    return OK;
}

/* A queue of packets. Every kernel is done as soon as it is there. */
struct queue {
    hsa_queue_t public;
    uint64_t written, done;
};

/* A signal, and the queue that it is the doorbell of. */
struct signal {
    hsa_signal_value_t value;
    struct queue *queue;
};

static struct signal *at(hsa_signal_t signal) {
    return (struct signal *)(uintptr_t)signal.handle;
}

hsa_status_t hsa_signal_create(hsa_signal_value_t initial, uint32_t count,
                               const hsa_agent_t *agents, hsa_signal_t *signal) {
    (void)count, (void)agents;
    signal->handle = (uint64_t)(uintptr_t)calloc(1, sizeof(struct signal));
    at(*signal)->value = initial;
    return OK;
}

hsa_status_t hsa_amd_signal_create(hsa_signal_value_t initial, uint32_t count,
                                   const hsa_agent_t *agents, uint64_t attributes,
                                   hsa_signal_t *signal) {
    (void)attributes;
    return hsa_signal_create(initial, count, agents, signal);
}

hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
    free((void *)(uintptr_t)signal.handle);
    return OK;
}

hsa_status_t hsa_amd_signal_async_handler(hsa_signal_t signal, hsa_signal_condition_t condition,
                                          hsa_signal_value_t value,
                                          hsa_amd_signal_handler handler, void *data) {
    (void)signal, (void)condition, (void)value, (void)handler, (void)data;
    return OK;
}

hsa_signal_value_t hsa_signal_load_relaxed(hsa_signal_t signal) {
    return at(signal)->value;
}

hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition,
                                             hsa_signal_value_t value, uint64_t timeout,
                                             hsa_wait_state_t state) {
    (void)signal, (void)condition, (void)value, (void)timeout, (void)state;
    return 0;
}

static void store(hsa_signal_t signal, hsa_signal_value_t value) {
    at(signal)->value = value;
    struct queue *queue = at(signal)->queue;
    while (queue && queue->done < queue->written) {
        hsa_barrier_and_packet_t *packets = queue->public.base_address;
        /* All kinds of packets have it in the same place. */
        hsa_signal_t completion = packets[queue->done++ % queue->public.size].completion_signal;
        if (completion.handle)
            at(completion)->value--;
    }
}

void hsa_signal_silent_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
    store(signal, value);
}
void hsa_signal_store_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
    store(signal, value);
}
void hsa_signal_store_screlease(hsa_signal_t signal, hsa_signal_value_t value) {
    store(signal, value);
}
void hsa_signal_subtract_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
    store(signal, hsa_signal_load_relaxed(signal) - value);
}
void hsa_signal_add_relaxed(hsa_signal_t signal, hsa_signal_value_t value) {
    store(signal, hsa_signal_load_relaxed(signal) + value);
}

hsa_status_t hsa_queue_create(hsa_agent_t agent, uint32_t size, hsa_queue_type32_t type,
                              void (*callback)(hsa_status_t, hsa_queue_t *, void *), void *data,
                              uint32_t private_size, uint32_t group_size, hsa_queue_t **queue) {
    (void)agent, (void)callback, (void)data, (void)private_size, (void)group_size;
    struct queue *made = calloc(1, sizeof *made);
    made->public.type = type;
    made->public.features = HSA_QUEUE_FEATURE_KERNEL_DISPATCH;
    made->public.base_address = aligned_alloc(64, 64 * (size_t)size);
    memset(made->public.base_address, 0, 64 * (size_t)size);
    made->public.size = size;
    *queue = &made->public;
    hsa_signal_create(0, 0, NULL, &made->public.doorbell_signal);
    at(made->public.doorbell_signal)->queue = made;
    return OK;
}

hsa_status_t hsa_queue_destroy(hsa_queue_t *queue) {
    (void)queue;
    return OK;
}

uint64_t hsa_queue_load_write_index_relaxed(const hsa_queue_t *queue) {
    return ((const struct queue *)queue)->written;
}
uint64_t hsa_queue_load_write_index_scacquire(const hsa_queue_t *queue) {
    return ((const struct queue *)queue)->written;
}
uint64_t hsa_queue_load_read_index_relaxed(const hsa_queue_t *queue) {
    return ((const struct queue *)queue)->done;
}
uint64_t hsa_queue_load_read_index_scacquire(const hsa_queue_t *queue) {
    return ((const struct queue *)queue)->done;
}
uint64_t hsa_queue_add_write_index_screlease(const hsa_queue_t *queue, uint64_t value) {
    struct queue *own = (struct queue *)queue;
    own->written += value;
    return own->written - value;
}

hsa_status_t hsa_amd_queue_set_priority(hsa_queue_t *queue, hsa_amd_queue_priority_t priority) {
    (void)queue, (void)priority;
    return OK;
}

/* Copies in parts, over and over into one buffer, which stands for GPU memory. */
static void copy(const char *code, size_t size) {
    static char gpu[1 << 16];
    for (size_t at = 0; at < size; at += sizeof gpu) {
        memcpy(gpu, code + at, size - at < sizeof gpu ? size - at : sizeof gpu);
        __asm__ volatile("" : : "r"(gpu) : "memory"); /* Somebody may read it. */
    }
}

/* A reader is the size and the digest of its code object. */
hsa_status_t hsa_code_object_reader_create_from_memory(const void *code, size_t size,
                                                       hsa_code_object_reader_t *reader) {
    char digest[65] = "", *text = malloc(100);
    if (getenv("STUB_HSA_REPORT"))
        sha256(code, size, digest);
    else
        copy(code, size);
    snprintf(text, 100, "%zu\t%s", size, digest);
    reader->handle = (uint64_t)(uintptr_t)text;
    return OK;
}

hsa_status_t hsa_code_object_reader_destroy(hsa_code_object_reader_t reader) {
    free((void *)(uintptr_t)reader.handle);
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
    (void)executable, (void)options;
    char text[130];
    snprintf(text, sizeof text, "%d\t%s", (int)agent.handle - FIRST_GPU,
             (const char *)(uintptr_t)reader.handle);
    report("code object", text);
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
