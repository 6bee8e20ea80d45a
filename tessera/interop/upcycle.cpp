// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/upcycle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/models/options.h"
#include "tessera/tensor/init.h"

namespace tessera::interop {
namespace {

/// The projections of an MLP, and those of experts.
struct Projection {
  std::string_view dense, sparse;
  bool input = false;
};
constexpr std::array<Projection, 4> kProjections = {
    {{".mlp.gate_up_proj.", ".mlp.experts.gate_up_proj.", true},
     {".mlp.down_proj.", ".mlp.experts.down_proj."},
     {".mlp.c_fc.", ".mlp.experts.gate_up_proj.", true},
     {".mlp.c_proj.", ".mlp.experts.down_proj."}}};
/// The seed of new routers: their weights are the same in every conversion.
constexpr std::uint64_t kSeed = 0;

using checkpoint::StreamedTensor;

/// nullptr: the tensor belongs to no MLP.
const Projection* projection_of(const StreamedTensor& tensor) {
  const auto* const found =
      std::find_if(kProjections.begin(), kProjections.end(), [&](const Projection& one) {
        return tensor.name.find(one.dense) != std::string::npos;
      });
  return found == kProjections.end() ? nullptr : found;
}

/// The tensor `count` times, one after the other along a new first dim.
StreamedTensor repeated(const StreamedTensor& one, const Projection& of, std::int64_t count) {
  StreamedTensor out = one;
  out.name.replace(out.name.find(of.dense), of.dense.size(), of.sparse);
  out.shape.insert(out.shape.begin(), count);
  const std::int64_t numel =
      std::accumulate(one.shape.begin(), one.shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto width = static_cast<std::int64_t>(size_of(one.dtype));
  out.read = [read = one.read, numel, width](
                 std::int64_t begin, std::int64_t end, std::byte* bytes) {
    while (begin < end) {
      const std::int64_t first = begin % numel, count_here = std::min(end - begin, numel - first);
      read(first, first + count_here, bytes);
      bytes += count_here * width;
      begin += count_here;
    }
  };
  return out;
}

/// The router of the layer of an input projection.
StreamedTensor router_of(const StreamedTensor& input,
                         const Projection& of,
                         std::int64_t experts,
                         double init_std) {
  const std::string name = input.name.substr(0, input.name.find(of.dense)) + ".mlp.gate.weight";
  const std::vector<std::int64_t> shape = {experts, input.shape.back()};
  ParamInfo info;
  info.name = name;
  info.shape = info.matrix_shape = shape;
  info.init = Init::normal(init_std);
  const auto read = [info](std::int64_t begin, std::int64_t end, std::byte* bytes) {
    initialize_range(info, kSeed, begin, at::from_blob(bytes, {end - begin}, at::kFloat));
  };
  return {name, DType::F32, shape, read, {}, {}};
}

double init_std_of(const json::Value& model) {
  const json::Value* const given = model.find("init_std");
  return given != nullptr && given->is_number() && given->as_double() > 0.0 ? given->as_double()
                                                                            : 0.02;
}

}  // namespace

void make_experts(NativeExport& model, const Upcycling& wanted) {
  json::Value& description = model.meta.config["model"];
  TESSERA_REQUIRE(description.find("moe") == nullptr,
                  Unsupported,
                  "the model has experts already",
                  "convert it without --upcycle");
  TESSERA_REQUIRE(
      wanted.num_experts >= 1 && wanted.top_k >= 1 && wanted.top_k <= wanted.num_experts,
      Config,
      fmt::format("a token cannot use {} of {} experts", wanted.top_k, wanted.num_experts),
      "give at least as many experts as a token uses");
  const json::Value* const family = description.find("family");
  TESSERA_REQUIRE(
      family != nullptr && models::ModelOptions(family->as_string()).has("moe.num_experts"),
      Unsupported,
      "models of this family have no experts",
      "use a decoder whose options in docs/config.md contain moe");
  const double init_std = init_std_of(description);
  std::vector<StreamedTensor> out;
  bool any = false;
  for (StreamedTensor& tensor : model.tensors) {
    const Projection* const of = projection_of(tensor);
    if (of == nullptr) {
      out.push_back(std::move(tensor));
      continue;
    }
    any = true;
    if (of->input && tensor.name.ends_with(".weight"))
      out.push_back(router_of(tensor, *of, wanted.num_experts, init_std));
    out.push_back(repeated(tensor, *of, wanted.num_experts));
  }
  TESSERA_REQUIRE(any,
                  Unsupported,
                  "the model has no MLPs of which experts could be made",
                  "use a dense model");
  model.tensors = std::move(out);
  description["moe"] =
      json::Value::object({{"num_experts", json::Value::integer(wanted.num_experts)},
                           {"top_k", json::Value::integer(wanted.top_k)}});
}

}  // namespace tessera::interop
