// Adds vectors on the GPU.
#pragma once

#ifdef __cplusplus
extern "C"
#endif
int vec_add(float *sum, const float *other);
