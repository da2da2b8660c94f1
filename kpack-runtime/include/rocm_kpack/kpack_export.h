/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* KPACK_API stands before each function of kpack.h. It keeps the function visible in programs that are
 * compiled with -fvisibility=hidden and contain the static library. Windows needs nothing there.
 */

#ifndef ROCM_KPACK_KPACK_EXPORT_H
#define ROCM_KPACK_KPACK_EXPORT_H

#if defined(__GNUC__) && !defined(_WIN32)
#define KPACK_API __attribute__((visibility("default")))
#else
#define KPACK_API
#endif

#endif  /* ROCM_KPACK_KPACK_EXPORT_H */
