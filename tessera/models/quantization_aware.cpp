// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/quantization_aware.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/expert_weights.h"
#include "tessera/nn/fake_quantization.h"

namespace tessera::models {
namespace {

using Format = ops::FakeFormat;

struct FormatName {
  std::string_view name;
  Format format;
};
constexpr auto kFormatNames = std::to_array<FormatName>({{"int8", Format::Int8Row},
                                                         {"int4", Format::Int4Group},
                                                         {"fp8", Format::Fp8Row},
                                                         {"mxfp4", Format::Mxfp4},
                                                         {"nvfp4", Format::Nvfp4}});

std::optional<Format> format_of(const std::string& name) {
  const auto* const found = std::ranges::find(kFormatNames, name, &FormatName::name);
  return found == kFormatNames.end() ? std::nullopt : std::optional(found->format);
}

/// Returns for each row of the weight, as a matrix, the number of the file's tensor that it is part
/// of; empty: all rows are of one tensor.
std::vector<std::int64_t> parts_of_rows(const ParamInfo& info, const WeightMap& map) {
  const Composition composition = map.compose(info);
  std::map<std::string, std::int64_t> numbers;
  const std::int64_t rows = info.numel() / info.shape.back();
  std::vector<std::int64_t> out(static_cast<std::size_t>(rows), 0);
  for (const Composition::Part& part : composition.parts()) {
    const auto number = static_cast<std::int64_t>(numbers.size());
    const std::int64_t own = numbers.emplace(part.tensor, number).first->second;
    // The box of the part without the inputs.
    const std::function<void(std::size_t, std::int64_t)> mark = [&](std::size_t dim,
                                                                    std::int64_t row) {
      if (dim + 1 == info.shape.size()) {
        out[static_cast<std::size_t>(row)] = own;
        return;
      }
      for (std::int64_t i = 0; i < part.sizes[dim]; ++i)
        mark(dim + 1, row * info.shape[dim] + part.begin[dim] + i);
    };
    mark(0, 0);
  }
  if (numbers.size() <= 1) out.clear();
  return out;
}

/// True for a weight by which a linear layer, or the head, multiplies.
bool is_rounded(const ParamInfo& info, bool in_head) {
  if (info.stacked() || info.matrix_shape.size() != 2 || is_router(info)) return false;
  return info.role == Role::Matrix || info.role == Role::OutputHead ||
         (in_head && info.role == Role::TokenTable);
}

}  // namespace

void QatOptions::describe(config::Fields& f) {
  f.field("weights",
          weights,
          {.text = "Quantization-aware training: the format to which the weights of linear layers "
                   "and of the head are rounded wherever they are multiplied; gradients pass the "
                   "rounding. int4 has groups of group_size, fp8 a scale a row, mxfp4 and nvfp4 "
                   "groups of 32 and 16. What is saved are the weights before the rounding.",
           .choices = {"none", "int4", "fp8", "mxfp4", "nvfp4"}});
  f.field("activations",
          activations,
          {.text = "The same for the inputs of these layers: int8 and fp8 have a scale for each "
                   "token, nvfp4 also one for a micro-batch.",
           .choices = {"none", "int8", "fp8", "mxfp4", "nvfp4"}});
  f.field("group_size",
          group_size,
          {.text = "Weights that share a scale with int4.", .min = 2, .max = 1e6});
  f.field("after_steps",
          after_steps,
          {.text = "Number of updates before which nothing is rounded.",
           .unit = "steps",
           .min = 0,
           .max = 1e12});
}

nn::Model quantization_aware(const nn::Model& model,
                             const WeightMap& map,
                             const QatOptions& options,
                             std::int64_t& count) {
  nn::FakeQuantization how{.weights = format_of(options.weights).value(),
                           .activations = format_of(options.activations),
                           .group_size = options.group_size,
                           .after_steps = options.after_steps};
  count = 0;
  nn::Model out = model;
  for (std::size_t b = 0; b < out.blocks.size(); ++b) {
    const bool head = b + 1 == out.blocks.size();
    auto forms =
        std::make_shared<std::map<std::string, std::shared_ptr<const nn::FakeQuantizedForm>>>();
    for (const auto& info : nn::declared_by(out.blocks[b])) {
      if (!is_rounded(*info, head)) continue;
      const std::int64_t inputs = info->shape.back();
      for (const auto& format : {std::optional(how.weights), how.activations}) {
        const std::int64_t group = format ? ops::fake_group(*format, how.group_size) : 0;
        TESSERA_REQUIRE(
            group == 0 || inputs % group == 0,
            Config,
            fmt::format("qat: {} has {} inputs, which are no multiple of the {} numbers "
                        "that share a scale",
                        info->name,
                        inputs,
                        group),
            "choose another format, or qat.group_size with int4");
      }
      const bool parts = how.weights == Format::Nvfp4;
      forms->emplace(info->name,
                     std::make_shared<const nn::FakeQuantizedForm>(
                         how, parts ? parts_of_rows(*info, map) : std::vector<std::int64_t>()));
      ++count;
    }
    out.blocks[b].declared.reset();
    out.blocks[b].adapt = [forms, before = out.blocks[b].adapt](nn::Params& params) {
      if (before) before(params);
      for (const auto& param : params.list()) {
        const auto found = forms->find(param->info().name);
        if (found != forms->end()) param->extend(found->second);
      }
    };
  }
  nn::declare_all(out);
  return out;
}

}  // namespace tessera::models
