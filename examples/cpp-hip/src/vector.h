#pragma once

unsigned vector_add(float *a, const float *b, unsigned n);
unsigned vector_scale(float *a, float factor, unsigned n);
