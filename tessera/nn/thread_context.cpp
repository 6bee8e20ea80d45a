// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/thread_context.h"

namespace tessera::nn::detail {

ThreadContext::ThreadContext()
    : thread_(std::this_thread::get_id()),
      ledger_(&memory::current_ledger()),
      tag_(memory::current_tag()) {
  if (const ops::OpLog* log = ops::OpLog::current(); log != nullptr) log_ = log->handle();
}

ThreadContext::Scope::Scope(const ThreadContext& context) {
  if (context.thread_ == std::this_thread::get_id()) return;
  ledger_.emplace(*context.ledger_);
  tag_.emplace(context.tag_);
  log_.emplace(context.log_);
}

}  // namespace tessera::nn::detail
