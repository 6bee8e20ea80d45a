// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/trace.h"

namespace tessera::trace {
namespace {

thread_local Listener* listener_of_thread = nullptr;

}  // namespace

std::string_view name(Kind kind) noexcept {
  switch (kind) {
    case Kind::Phase:
      return "phase";
    case Kind::Block:
      return "block";
    case Kind::Operation:
      return "operation";
    case Kind::Collective:
      return "collective";
    case Kind::Wait:
      return "wait";
  }
  return "";
}

Listener::Listener() noexcept : next_(listener_of_thread) {
  listener_of_thread = this;
}

Listener::~Listener() {
  // The order of destruction may differ if hooks own listeners.
  Listener** at = &listener_of_thread;
  while (*at != nullptr && *at != this)
    at = &(*at)->next_;
  if (*at != nullptr) *at = next_;
}

bool heard() noexcept {
  return listener_of_thread != nullptr;
}

void tell(const Span& span) {
  for (Listener* one = listener_of_thread; one != nullptr; one = one->next_)
    one->hear(span);
}

}  // namespace tessera::trace
