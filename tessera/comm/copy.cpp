// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace tessera::comm {

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes < kPastCaches) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  copy_past_caches(to, from, bytes);
  finish_past_caches();
}

#ifdef __x86_64__

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kLine = 64, kAhead = 8 * kLine;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  // Whole cache lines, which are written without being read.
  const std::size_t before =
      std::min(bytes, (kLine - reinterpret_cast<std::uintptr_t>(out) % kLine) % kLine);
  std::memcpy(out, in, before);
  std::size_t at = before;
  for (; at + kLine <= bytes; at += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(in + at + kAhead), _MM_HINT_NTA);
    const auto* line = reinterpret_cast<const __m128i*>(in + at);
    const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1),
                  c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
    auto* place = reinterpret_cast<__m128i*>(out + at);
    _mm_stream_si128(place, a);
    _mm_stream_si128(place + 1, b);
    _mm_stream_si128(place + 2, c);
    _mm_stream_si128(place + 3, d);
  }
  std::memcpy(out + at, in + at, bytes - at);
}

void finish_past_caches() {
  _mm_sfence();
}

#else

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void finish_past_caches() {}

#endif

}  // namespace tessera::comm
