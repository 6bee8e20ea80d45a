// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/op_trace.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include "tessera/base/error.h"

namespace tessera::ops {
namespace {

thread_local OpTrace* trace_of_thread = nullptr;

/// Arguments and their values at the beginning of a call, whose end follows after its inner calls.
struct Begun : at::ObserverContext {
  OpTrace* trace = nullptr;
  std::vector<c10::IValue> args;
  std::vector<int> in;
};

/// True for an operation that only calls others, which are recorded themselves.
bool only_calls_others(const at::RecordFunction& op) {
  const auto name = op.operator_name();
  if (!name) return false;
  const auto found = c10::Dispatcher::singleton().findOp(*name);
  return found && found->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& op) {
  auto begun = std::make_unique<Begun>();
  if (!std::string_view(op.name()).starts_with("aten::") || only_calls_others(op)) return begun;
  begun->trace = trace_of_thread;
  if (begun->trace == nullptr) return begun;
  begun->args.assign(op.inputs().begin(), op.inputs().end());
  begun->in = begun->trace->values_of(begun->args);
  return begun;
}

/// True if the operation writes to tensors that it gets.
bool writes_arguments(const at::RecordFunction& op) {
  const std::string_view name = op.name();
  if (name.ends_with('_') && !name.ends_with("__")) return true;
  const auto full = op.operator_name();
  return full && full->overload_name.find("out") != std::string::npos;
}

void on_return(const at::RecordFunction& op, at::ObserverContext* context) {
  auto* const begun = static_cast<Begun*>(context);
  if (begun == nullptr || begun->trace == nullptr) return;
  std::vector<at::Tensor> out;
  for (const c10::IValue& value : op.outputs()) {
    if (value.isTensor()) {
      out.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        out.push_back(tensor);
    }
  }
  if (out.empty()) return;
  const bool writes = writes_arguments(op);
  const auto given = [&](const at::Tensor& tensor) {
    return std::any_of(begun->in.begin(), begun->in.end(), [&](int value) {
      return value >= 0 &&
             begun->trace->values()[static_cast<std::size_t>(value)].tensor.is_same(tensor);
    });
  };
  // An operation may return what it got.
  if (!writes && out.size() == 1 && given(out.front())) return;
  begun->trace->add(op.name(), std::move(begun->args), std::move(begun->in), out, writes);
}

const void* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

OpTrace::OpTrace() {
  TESSERA_REQUIRE(trace_of_thread == nullptr, Bug, "two traces of operations on one thread", "");
  trace_of_thread = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(on_call, on_return)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OpTrace::~OpTrace() {
  stop();
}

void OpTrace::stop() {
  if (trace_of_thread != this) return;
  at::removeCallback(handle_);
  trace_of_thread = nullptr;
}

OpTrace* OpTrace::current() noexcept {
  return trace_of_thread;
}

int OpTrace::fresh(const at::Tensor& tensor, int call) {
  const auto value = static_cast<int>(values_.size());
  values_.push_back({.tensor = tensor, .call = call, .time = ++time_});
  of_tensor_[tensor.unsafeGetTensorImpl()] = value;
  return value;
}

int OpTrace::value_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return -1;
  const void* const key = tensor.unsafeGetTensorImpl();
  const auto known = of_tensor_.find(key);
  if (known == of_tensor_.end()) return fresh(tensor, -1);
  const auto written = last_write_.find(storage_of(tensor));
  if (written != last_write_.end() && written->second.tensor != key &&
      written->second.time > values_[static_cast<std::size_t>(known->second)].time) {
    const int value = fresh(tensor, -1);
    values_.back().torn = true;
    return value;
  }
  return known->second;
}

bool OpTrace::is_overwritten(int value) const {
  const TracedValue& of = values_.at(static_cast<std::size_t>(value));
  const auto written = last_write_.find(storage_of(of.tensor));
  return written != last_write_.end() && written->second.time > of.time;
}

std::vector<int> OpTrace::values_of(const std::vector<c10::IValue>& args) {
  std::vector<int> out;
  for (const c10::IValue& arg : args) {
    if (arg.isTensor()) {
      out.push_back(value_of(arg.toTensor()));
    } else if (arg.isTensorList()) {
      for (const at::Tensor& tensor : arg.toTensorVector())
        out.push_back(value_of(tensor));
    } else if (arg.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : arg.toOptionalTensorVector())
        out.push_back(tensor ? value_of(*tensor) : -1);
    }
  }
  return out;
}

void OpTrace::add(std::string name,
                  std::vector<c10::IValue> args,
                  std::vector<int> in,
                  const std::vector<at::Tensor>& out,
                  bool writes) {
  const auto call = static_cast<int>(calls_.size());
  TracedCall made{std::move(name), std::move(args), std::move(in), {}};
  for (const at::Tensor& tensor : out) {
    made.out.push_back(tensor.defined() ? fresh(tensor, call) : -1);
    if (writes && tensor.defined())
      last_write_[storage_of(tensor)] = {tensor.unsafeGetTensorImpl(), values_.back().time};
  }
  calls_.push_back(std::move(made));
}

}  // namespace tessera::ops
