/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* KPACK_API stands before each function of kpack.h. It keeps the function visible in programs that are
 * compiled with -fvisibility=hidden and contain the static library.
 */

#ifndef ROCM_KPACK_KPACK_EXPORT_H
#define ROCM_KPACK_KPACK_EXPORT_H

#ifdef __GNUC__
#define KPACK_API __attribute__((visibility("default")))
#else
#define KPACK_API
#endif

#endif  /* ROCM_KPACK_KPACK_EXPORT_H */
