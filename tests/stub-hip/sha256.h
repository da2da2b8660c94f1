/* SHA-256 (FIPS 180-4), as text. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
    0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
    0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
    0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2};

static uint32_t rotate(uint32_t word, int by) {
    return word >> by | word << (32 - by);
}

static void sha256_block(uint32_t state[8], const unsigned char *block) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] +
               (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
               (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    /* Variables of their own stay in registers. */
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t first = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                         ((e & f) ^ (~e & g)) + round_constants[i] + w[i];
        uint32_t second = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                          ((a & b) ^ (a & c) ^ (b & c));
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + second;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

#ifdef __x86_64__
/* With the processor's instructions, since checks of large libraries hash gigabytes. */
__attribute__((target("sha,sse4.1"))) static void sha256_block_x86(uint32_t state[8],
                                                                   const unsigned char *block) {
    const __m128i big_endian = _mm_set_epi32(0x0c0d0e0f, 0x08090a0b, 0x04050607, 0x00010203);
    __m128i w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)block + i), big_endian);
    const __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    const __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    __m128i even = abef, odd = cdgh;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        __m128i *now = &w[i % 4], next = w[(i + 1) % 4], last = w[(i + 3) % 4];
        __m128i sum = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)round_constants + i));
        odd = _mm_sha256rnds2_epu32(odd, even, sum);
        even = _mm_sha256rnds2_epu32(even, odd, _mm_shuffle_epi32(sum, 0x0e));
        __m128i shifted = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
        shifted = _mm_add_epi32(_mm_sha256msg1_epu32(*now, next), shifted);
        *now = _mm_sha256msg2_epu32(shifted, last);
    }
    uint32_t feba[4], hgdc[4];
    _mm_storeu_si128((__m128i *)feba, _mm_add_epi32(even, abef));
    _mm_storeu_si128((__m128i *)hgdc, _mm_add_epi32(odd, cdgh));
    const uint32_t result[8] = {feba[3], feba[2], hgdc[3], hgdc[2],
                                feba[1], feba[0], hgdc[1], hgdc[0]};
    memcpy(state, result, sizeof result);
}

static int has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA;
}
#endif

static void sha256(const unsigned char *bytes, size_t size, char text[65]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char last[128] = {0};
    void (*block)(uint32_t[8], const unsigned char *) = sha256_block;
#ifdef __x86_64__
    if (has_sha())
        block = sha256_block_x86;
#endif
    size_t rest = size % 64, padded = rest < 56 ? 64 : 128;
    for (size_t at = 0; at + 64 <= size; at += 64)
        block(state, bytes + at);
    memcpy(last, bytes + size - rest, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        last[padded - 1 - i] = (unsigned char)((uint64_t)size * 8 >> (8 * i));
    for (size_t at = 0; at < padded; at += 64)
        block(state, last + at);
    for (int i = 0; i < 8; i++)
        snprintf(text + 8 * i, 9, "%08x", state[i]);
}
