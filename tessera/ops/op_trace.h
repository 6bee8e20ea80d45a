// SPDX-License-Identifier: Apache-2.0
// Records which operations computed which tensors on one thread, so that a model can be written as
// a graph of operations.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace tessera::ops {

/// One call. Arguments that are tensors, or lists of tensors, are listed as values in `in`, in the
/// order of the arguments; -1 is an undefined tensor.
struct TracedCall {
  std::string name;  ///< "tessera::linear", "aten::add"
  std::vector<c10::IValue> args;
  std::vector<int> in, out;
};
/// A tensor between two writes to it.
struct TracedValue {
  at::Tensor tensor;       ///< keeps its memory; its numbers may be those of a later write
  int call = -1;           ///< the call that made it; -1: it existed before
  bool torn = false;       ///< it was read after a write through another view of its memory
  std::uint64_t time = 0;  ///< when it was first seen, or made
};

/// Records, during its lifetime, the forward operations of this thread: tessera's by their public
/// functions, and libtorch's unless they only call others (CompositeImplicit). The calls that a
/// call makes are recorded before it; the value of a tensor is that of the last call that returned
/// it. Not recorded: writes through pointers outside of tessera's operations. One trace per thread
/// at a time. Cost: it keeps every tensor; without a trace, an operation reads a thread-local
/// pointer.
class OpTrace {
 public:
  OpTrace();
  ~OpTrace();
  OpTrace(const OpTrace&) = delete;
  OpTrace& operator=(const OpTrace&) = delete;

  /// Records nothing more, so that another trace can begin.
  void stop();
  static OpTrace* current() noexcept;
  [[nodiscard]] const std::vector<TracedCall>& calls() const { return calls_; }
  [[nodiscard]] const std::vector<TracedValue>& values() const { return values_; }
  /// The value that the tensor has now, -1 if it is undefined.
  int value_of(const at::Tensor& tensor);
  /// True if a recorded operation wrote to the memory of the value after it was made.
  [[nodiscard]] bool is_overwritten(int value) const;

  /// Values of the tensors among the arguments.
  std::vector<int> values_of(const std::vector<c10::IValue>& args);
  /// `writes`: the call wrote to tensors that it got.
  void add(std::string name,
           std::vector<c10::IValue> args,
           std::vector<int> in,
           const std::vector<at::Tensor>& out,
           bool writes = false);

 private:
  int fresh(const at::Tensor& tensor, int call);

  std::vector<TracedCall> calls_;
  std::vector<TracedValue> values_;
  std::unordered_map<const void*, int> of_tensor_;  ///< by the tensor's implementation
  struct Write {
    const void* tensor = nullptr;
    std::uint64_t time = 0;
  };
  std::unordered_map<const void*, Write> last_write_;  ///< by the storage
  std::uint64_t time_ = 0;
  std::uint64_t handle_ = 0;
};

/// Tells the trace of this thread, if there is one, of a call of tessera's that has ended. `args`
/// is called only then.
template <class Fn>
void trace_call(const char* name, const Fn& args, const std::vector<at::Tensor>& out) {
  OpTrace* const trace = OpTrace::current();
  if (trace == nullptr) return;
  std::vector<c10::IValue> values = args();
  std::vector<int> in = trace->values_of(values);
  trace->add(name, std::move(values), std::move(in), out);
}

}  // namespace tessera::ops
