#include "hip.h"
#include "vec.h"

__global__ void add(float *a, const float *b) { a[thread_index()] += b[thread_index()]; }

int vec_add(float *a, const float *b, int n) {
    add<<<1, n>>>(a, b);
    return n + 1;
}
