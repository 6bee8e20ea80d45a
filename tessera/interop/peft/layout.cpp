// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/layout.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

namespace tessera::interop {
namespace {

using models::AdapterModule;

/// Rows of `width` floats; each row of the parameter corresponds to a row of the tensor.
PeftTensor of_rows(std::string name,
                   Shape shape,
                   const std::vector<std::int64_t>& rows,
                   std::int64_t count,
                   std::int64_t width) {
  PeftTensor out{std::move(name), std::move(shape), {}, {}, {}};
  out.stored = std::string(kPeftPrefix) + out.name;
  const auto row_of = [rows](std::int64_t row) {
    return rows.empty() ? row : rows[static_cast<std::size_t>(row)];
  };
  out.into = [=](const std::vector<float>& theirs, float* ours) {
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(theirs.data() + row_of(row) * width, width, ours + row * width);
  };
  out.out_of = [=](const float* ours, std::vector<float>& theirs) {
    for (std::int64_t row = 0; row < count; ++row)
      std::copy_n(ours + row * width, width, theirs.data() + row_of(row) * width);
  };
  return out;
}

/// A matrix that is stored transposed.
PeftTensor of_transposed(std::string name, std::int64_t rows, std::int64_t columns) {
  PeftTensor out{std::move(name), {columns, rows}, {}, {}, {}};
  out.stored = std::string(kPeftPrefix) + out.name;
  out.into = [=](const std::vector<float>& theirs, float* ours) {
    for (std::int64_t i = 0; i < rows * columns; ++i)
      ours[i] = theirs[static_cast<std::size_t>((i % columns) * rows + i / columns)];
  };
  out.out_of = [=](const float* ours, std::vector<float>& theirs) {
    for (std::int64_t i = 0; i < rows * columns; ++i)
      theirs[static_cast<std::size_t>((i % columns) * rows + i / columns)] = ours[i];
  };
  return out;
}

/// Moves what the tensor has into one expert's part of the parameter.
PeftTensor at_expert(PeftTensor tensor, std::int64_t first) {
  tensor.into = [first, into = tensor.into](const std::vector<float>& theirs, float* ours) {
    into(theirs, ours + first);
  };
  tensor.out_of = [first, out_of = tensor.out_of](const float* ours, std::vector<float>& theirs) {
    out_of(ours + first, theirs);
  };
  return tensor;
}

/// B of a stacked parameter: [outputs, rank * experts], of which column i * experts + e is column i
/// of expert e.
PeftTensor of_stacked_b(const std::string& name, const AdapterModule& module) {
  const std::int64_t E = module.experts, R = module.part.rank, O = module.outputs;
  PeftTensor out{name, {O, R * E}, {}, {}, {}};
  out.stored = std::string(kPeftPrefix) + out.name;
  // Calls move(place in theirs, place in ours) for every element.
  const auto each = [=, rows = module.rows](const auto& move) {
    for (std::int64_t e = 0; e < E; ++e) {
      for (std::int64_t o = 0; o < O; ++o) {
        const std::int64_t row = rows.empty() ? o : rows[static_cast<std::size_t>(o)];
        for (std::int64_t i = 0; i < R; ++i)
          move(static_cast<std::size_t>(row * R * E + i * E + e), (e * O + o) * R + i);
      }
    }
  };
  out.into = [each](const std::vector<float>& theirs, float* ours) {
    each([&](std::size_t from, std::int64_t to) { ours[to] = theirs[from]; });
  };
  out.out_of = [each](const float* ours, std::vector<float>& theirs) {
    each([&](std::size_t to, std::int64_t from) { theirs[to] = ours[from]; });
  };
  return out;
}

void add_experts(const AdapterModule& module, PeftLayout& out) {
  const std::int64_t rank = module.part.rank;
  if (!module.parameter.empty()) {
    const std::string& at = module.stored.front();
    // Rows of A are ordered by expert, as here.
    out[module.a()].push_back(of_rows(at + ".lora_A.weight",
                                      {rank * module.experts, module.inputs},
                                      {},
                                      rank * module.experts,
                                      module.inputs));
    out[module.b()].push_back(of_stacked_b(at + ".lora_B.weight", module));
    return;
  }
  for (std::int64_t e = 0; e < module.experts; ++e) {
    const std::string& at = module.stored[static_cast<std::size_t>(e)];
    out[module.a()].push_back(
        at_expert(of_rows(at + ".lora_A.weight", {rank, module.inputs}, {}, rank, module.inputs),
                  e * rank * module.inputs));
    out[module.b()].push_back(
        at_expert(of_rows(at + ".lora_B.weight", {module.outputs, rank}, {}, module.outputs, rank),
                  e * module.outputs * rank));
  }
}

void add_module(const AdapterModule& module, PeftLayout& out) {
  if (module.experts > 0) return add_experts(module, out);
  const std::int64_t rank = module.part.rank;
  const auto add = [&](const std::string& name, PeftTensor tensor) {
    out[name].push_back(std::move(tensor));
  };
  if (module.table) {
    add(module.a(), of_transposed(module.a(), module.outputs, rank));
    add(module.b(), of_rows(module.b(), {module.inputs, rank}, {}, module.inputs, rank));
    return;
  }
  add(module.a(), of_rows(module.a(), {rank, module.inputs}, {}, rank, module.inputs));
  add(module.b(), of_rows(module.b(), {module.outputs, rank}, module.rows, module.outputs, rank));
  if (!module.part.magnitude) return;
  add(module.magnitude(),
      of_rows(module.magnitude(), {module.outputs}, module.rows, module.outputs, 1));
}

/// Adds a parameter that is trained as a whole. Biases of adapted layers are stored inside these
/// layers.
void add_trained(const ParamInfo& info,
                 const models::WeightMap& map,
                 const std::set<std::string>& adapted,
                 PeftLayout& out) {
  const models::Composition composition = map.compose(info);
  for (const models::Composition::Part& part : composition.parts()) {
    const models::StridedCopy copy = composition.copy_of(part);
    PeftTensor tensor{part.tensor, part.tensor_shape, {}, {}, {}};
    const std::size_t dot = part.tensor.rfind('.');
    const std::string module = part.tensor.substr(0, dot);
    tensor.stored =
        std::string(kPeftPrefix) +
        (adapted.contains(module) ? module + ".base_layer" + part.tensor.substr(dot) : part.tensor);
    const std::int64_t numel = info.numel();
    tensor.into = [copy, numel](const std::vector<float>& theirs, float* ours) {
      copy_range(
          copy,
          0,
          numel,
          [&](std::int64_t begin, std::int64_t end, float* to) {
            std::copy(theirs.begin() + begin, theirs.begin() + end, to);
          },
          ours);
    };
    tensor.out_of = [copy = copy.reversed()](const float* ours, std::vector<float>& theirs) {
      copy_range(
          copy,
          0,
          static_cast<std::int64_t>(theirs.size()),
          [&](std::int64_t begin, std::int64_t end, float* to) {
            std::copy(ours + begin, ours + end, to);
          },
          theirs.data());
    };
    out[info.name].push_back(std::move(tensor));
  }
}

}  // namespace

PeftLayout layout_of(const models::Adapter& adapter, const models::WeightMap& map) {
  PeftLayout out;
  std::set<std::string> adapted;
  for (const AdapterModule& module : adapter.modules) {
    add_module(module, out);
    adapted.insert(module.part.module);
  }
  for (const std::string& name : adapter.trained)
    add_trained(*adapter.parameters.at(name), map, adapted, out);
  return out;
}

}  // namespace tessera::interop
