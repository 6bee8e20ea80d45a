// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/onnx/model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/interop/onnx/ops.h"

namespace tessera::interop {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Error(Error::Kind::Unsupported,
              "not built: an ONNX file of this model: " + why,
              "convert to a Hugging Face folder");
}

/// The calls that the output depends on, in the order of their ends.
std::vector<int> calls_of(const OnnxRun& run) {
  const ops::OpTrace& trace = *run.trace;
  std::vector<bool> needed(trace.calls().size(), false);
  const auto need = [&](int value) {
    if (value < 0) return;
    const int call = trace.values()[static_cast<std::size_t>(value)].call;
    if (call >= 0) needed[static_cast<std::size_t>(call)] = true;
  };
  need(run.output);
  for (std::size_t call = needed.size(); call-- > 0;) {
    if (!needed[call]) continue;
    for (const int value : trace.calls()[call].in)
      need(value);
  }
  std::vector<int> out;
  for (std::size_t call = 0; call < needed.size(); ++call) {
    if (needed[call]) out.push_back(static_cast<int>(call));
  }
  return out;
}

/// One memory seen in one way.
using Memory = std::tuple<const void*, std::vector<std::int64_t>, std::vector<std::int64_t>>;
Memory memory_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), tensor.sizes().vec(), tensor.strides().vec()};
}

bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return memory_of(a) == memory_of(b) || a.equal(b);
}

/// True for an operation that does not read the tensor that it writes to.
bool only_writes(std::string_view name) {
  return name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
}

class Writer {
 public:
  explicit Writer(const OnnxTraced& model) : model_(model), graph_(names_of(model.axes)) {
    TESSERA_ASSERT(model.axes.size() <= kOnnxAxes &&
                   model.runs.size() == (std::size_t{1} << model.axes.size()) + 1);
    for (const auto& [name, tensor] : model.parameters)
      parameters_.emplace(tensor.const_data_ptr(), name);
  }

  OnnxGraph graph() {
    std::vector<std::vector<int>> calls;
    for (const OnnxRun& run : model_.runs) {
      calls.push_back(calls_of(run));
      if (calls.back().size() != calls[0].size()) refuse(kChanges);
    }
    declare_inputs(calls[0]);
    for (std::size_t i = 0; i < calls[0].size(); ++i) {
      std::vector<int> numbers;
      for (const std::vector<int>& run : calls)
        numbers.push_back(run[i]);
      write(numbers);
    }
    std::vector<int> values;
    for (const OnnxRun& run : model_.runs)
      values.push_back(run.output);
    graph_.node_to({model_.output}, "Identity", {name_of(values)});
    std::vector<at::Tensor> tensors;
    for (std::size_t run = 0; run < values.size(); ++run)
      tensors.push_back(tensor_of(run, values[run]));
    graph_.output(model_.output, tensors[0].scalar_type(), sizes_of(tensors));
    return std::move(graph_);
  }

 private:
  static constexpr const char* kChanges =
      "its operations depend on the number of samples or tokens";

  static std::vector<std::string> names_of(const std::vector<OnnxAxis>& axes) {
    std::vector<std::string> out;
    for (const OnnxAxis& axis : axes)
      out.push_back(axis.name);
    return out;
  }

  [[nodiscard]] const ops::TracedCall& call_of(std::size_t run, int call) const {
    return model_.runs[run].trace->calls()[static_cast<std::size_t>(call)];
  }
  [[nodiscard]] const ops::TracedValue& value_of(std::size_t run, int value) const {
    return model_.runs[run].trace->values()[static_cast<std::size_t>(value)];
  }
  [[nodiscard]] const at::Tensor& tensor_of(std::size_t run, int value) const {
    return value_of(run, value).tensor;
  }

  /// The polynomial with these values in the runs: along one axis after the other, from its values
  /// at two places to a constant and a slope.
  [[nodiscard]] OnnxSize solve(const std::vector<std::int64_t>& sizes) const {
    const std::size_t corners = sizes.size() - 1;
    OnnxSize out;
    std::copy_n(sizes.begin(), corners, out.terms.begin());
    bool whole = true;
    for (std::size_t a = 0; a < model_.axes.size(); ++a) {
      const OnnxAxis& axis = model_.axes[a];
      const std::size_t bit = std::size_t{1} << a;
      for (std::size_t m = 0; m < corners; ++m) {
        if ((m & bit) == 0) continue;
        const std::int64_t rise = out.terms[m] - out.terms[m ^ bit];
        whole = whole && rise % (axis.high - axis.low) == 0;
        out.terms[m] = rise / (axis.high - axis.low);
        out.terms[m ^ bit] -= out.terms[m] * axis.low;
      }
    }
    std::int64_t there = 0;
    for (std::size_t m = 0; m < corners; ++m) {
      std::int64_t term = out.terms[m];
      for (std::size_t a = 0; a < model_.axes.size(); ++a)
        term *= (m >> a & 1) != 0 ? model_.axes[a].check : 1;
      there += term;
    }
    if (!whole || there != sizes.back())
      refuse(fmt::format("a size of {} in its runs is not a polynomial of the sizes of the input",
                         fmt::join(sizes, ", ")));
    return out;
  }

  [[nodiscard]] std::vector<OnnxSize> sizes_of(const std::vector<at::Tensor>& tensors) const {
    std::vector<OnnxSize> out;
    for (std::int64_t dim = 0; dim < tensors[0].dim(); ++dim) {
      std::vector<std::int64_t> sizes;
      for (const at::Tensor& tensor : tensors) {
        if (tensor.dim() != tensors[0].dim()) refuse(kChanges);
        sizes.push_back(tensor.size(dim));
      }
      out.push_back(solve(sizes));
    }
    return out;
  }

  void declare_inputs(const std::vector<int>& calls) {
    std::set<const void*> read;
    for (const int call : calls) {
      for (const int value : call_of(0, call).in)
        if (value >= 0) read.insert(tensor_of(0, value).unsafeGetTensorImpl());
    }
    for (std::size_t i = 0; i < model_.inputs.size(); ++i) {
      const at::Tensor& tensor = model_.runs[0].inputs[i];
      if (!read.contains(tensor.unsafeGetTensorImpl())) continue;
      std::vector<at::Tensor> tensors;
      for (const OnnxRun& run : model_.runs)
        tensors.push_back(run.inputs[i]);
      graph_.input(model_.inputs[i], tensor.scalar_type(), sizes_of(tensors));
      inputs_.emplace(tensor.unsafeGetTensorImpl(), model_.inputs[i]);
    }
  }

  /// The name of a value that some call of this graph made, or that is an input or a constant.
  std::string name_of(const std::vector<int>& values) {
    if (values[0] < 0) return "";
    const auto known = names_.find(values[0]);
    if (known != names_.end()) return known->second;
    const ops::TracedValue& value = value_of(0, values[0]);
    if (value.torn) refuse("a tensor is changed through one view and read through another");
    const auto input = inputs_.find(value.tensor.unsafeGetTensorImpl());
    const std::string name = input != inputs_.end() ? input->second : constant(values);
    return names_[values[0]] = name;
  }

  /// True if the value is the same in all runs, and its numbers can still be read.
  [[nodiscard]] bool is_constant(const std::vector<int>& values) const {
    for (std::size_t run = 0; run < values.size(); ++run) {
      if (values[run] < 0 || model_.runs[run].trace->is_overwritten(values[run]) ||
          !same_values(tensor_of(0, values[0]), tensor_of(run, values[run])))
        return false;
    }
    return true;
  }

  std::string constant(const std::vector<int>& values) {
    const at::Tensor& tensor = tensor_of(0, values[0]);
    if (!is_constant(values)) {
      refuse(
          fmt::format("a tensor of {} numbers depends on the input in a way that was not "
                      "recorded",
                      tensor.numel()));
    }
    std::string& name = constants_[memory_of(tensor)];
    if (name.empty()) {
      const auto parameter = parameters_.find(tensor.const_data_ptr());
      name = graph_.constant(tensor, parameter == parameters_.end() ? "" : parameter->second);
    }
    return name;
  }

  /// The values of one argument or result in all runs.
  template <class Fn>
  [[nodiscard]] std::vector<int> in_runs(const std::vector<int>& numbers, const Fn& get) const {
    std::vector<int> out;
    for (std::size_t run = 0; run < numbers.size(); ++run)
      out.push_back(get(call_of(run, numbers[run])));
    return out;
  }

  /// True if no input of the model leads to the call, so that its equal results are constants.
  [[nodiscard]] bool is_free(const ops::TracedCall& call) const {
    return std::all_of(call.in.begin(), call.in.end(), [&](int value) {
      if (value < 0 || free_.contains(value)) return true;
      const ops::TracedValue& of = value_of(0, value);
      return of.call < 0 && !of.torn && !inputs_.contains(of.tensor.unsafeGetTensorImpl());
    });
  }

  void write(const std::vector<int>& numbers) {
    OnnxStep step{.graph = graph_,
                  .calls = {},
                  .traces = {},
                  .solve = [this](const std::vector<std::int64_t>& sizes) { return solve(sizes); }};
    for (std::size_t run = 0; run < numbers.size(); ++run) {
      step.calls.push_back(&call_of(run, numbers[run]));
      step.traces.push_back(model_.runs[run].trace);
      if (step.calls[run]->name != step.calls[0]->name ||
          step.calls[run]->in.size() != step.calls[0]->in.size() ||
          step.calls[run]->out.size() != step.calls[0]->out.size()) {
        refuse(fmt::format("{}: {} or {}", kChanges, step.calls[0]->name, step.calls[run]->name));
      }
    }
    const ops::TracedCall& first = *step.calls[0];
    if (is_free(first)) {
      free_.insert(first.out.begin(), first.out.end());
      bool constant = true;
      for (std::size_t i = 0; i < first.out.size(); ++i) {
        constant = constant && (first.out[i] < 0 ||
                                is_constant(in_runs(numbers, [i](const ops::TracedCall& call) {
                                  return call.out[i];
                                })));
      }
      // name_of() makes the constants that something reads. Memory that is only reserved has no
      // numbers to write.
      if (constant || first.name.starts_with("aten::empty") ||
          first.name.starts_with("aten::new_empty"))
        return;
    }
    for (std::size_t i = 0; i < first.in.size(); ++i) {
      const bool is_lost = i == 0 && only_writes(first.name);
      step.in.push_back(is_lost ? "" : name_of(in_runs(numbers, [i](const ops::TracedCall& call) {
        return call.in[i];
      })));
    }
    for (const int value : first.out) {
      step.out.push_back(value < 0 ? "" : fmt::format("v{}", value));
      if (value >= 0) names_[value] = step.out.back();
    }
    onnx_nodes(step);
  }

  const OnnxTraced& model_;
  OnnxGraph graph_;
  std::map<const void*, std::string> parameters_;  ///< by their memory
  std::map<const void*, std::string> inputs_;      ///< by their implementation
  std::map<Memory, std::string> constants_;
  std::map<int, std::string> names_;  ///< by the value in the first run
  std::set<int> free_;                ///< values in the first run to which no input leads
};

}  // namespace

OnnxGraph onnx_graph(const OnnxTraced& model) {
  return Writer(model).graph();
}

}  // namespace tessera::interop
