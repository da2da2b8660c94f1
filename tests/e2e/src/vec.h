// The interface of the library: each function launches one kernel of one translation unit, and
// returns what host code computes.
#pragma once

#define VEC_API extern "C" __attribute__((visibility("default")))

VEC_API int vec_add(float *a, const float *b, int n);
VEC_API int vec_multiply(float *a, const float *b, int n);
VEC_API int vec_dot(float *result, const float *a, const float *b, int n);
