// SPDX-License-Identifier: Apache-2.0
// Spans of time on the thread of a rank, reported to listeners: computing, waiting and writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/base/clock.h"

namespace tessera::trace {

enum class Kind : std::uint8_t {
  Phase,       ///< data, reduction, update: parts of a step outside of blocks
  Block,       ///< forward or backward of one block
  Operation,   ///< a kernel or an operation of libtorch
  Collective,  ///< from the post of a collective to its result
  Wait         ///< time that this rank spent in a collective: waiting and copying
};
std::string_view name(Kind kind) noexcept;

struct Span {
  Kind kind = Kind::Phase;
  std::string_view name;      ///< "forward", "linear", "all_gather"
  std::string_view detail;    ///< block, shape or call site
  double begin = 0, end = 0;  ///< as now_s()
  double flops = 0, bytes = 0;
  int ranks = 1;  ///< number of ranks that take part in a collective
  [[nodiscard]] double seconds() const { return end - begin; }
};

/// Receives the spans of the thread that created it, each when it ends, so that inner spans come
/// before outer ones. Without a listener a Scope costs one read of a thread-local pointer.
class Listener {
 public:
  Listener() noexcept;
  virtual ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual void hear(const Span& span) = 0;

 private:
  friend void tell(const Span& span);
  Listener* next_;
};

/// Returns whether this thread has a listener.
bool heard() noexcept;
/// Passes a span to the listeners of this thread.
void tell(const Span& span);

/// A span from here to the end of the scope.
class Scope {
 public:
  Scope(Kind kind, std::string_view name, std::string_view detail = {})
      : heard_(heard()), span_{.kind = kind, .name = name, .detail = detail} {
    if (heard_) span_.begin = now_s();
  }
  ~Scope() {
    if (!heard_) return;
    span_.end = now_s();
    tell(span_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  bool heard_;
  Span span_;
};

}  // namespace tessera::trace
