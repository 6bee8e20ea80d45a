// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/block.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/core/Tensor.h>

#include "tessera/base/error.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {

bool Batch::has(std::string_view name) const {
  return tensors_.find(name) != tensors_.end();
}

const at::Tensor& Batch::tensor(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    std::vector<std::string_view> names;
    for (const auto& [other, tensor] : tensors_)
      names.emplace_back(other);
    throw Error(
        Error::Kind::Shape,
        fmt::format("the batch has no tensor \"{}\"; it has {}", name, fmt::join(names, ", ")),
        "read a tensor that the dataset gives, and ask Batch::has() for one that may be absent");
  }
  return it->second;
}

void Batch::set(std::string name, at::Tensor value) {
  tensors_.insert_or_assign(std::move(name), std::move(value));
}

Batch Batch::on(c10::Device device) const {
  Batch out;
  out.sample_ids = sample_ids;
  for (const auto& [name, tensor] : tensors_)
    out.set(name, on_device(tensor, device));
  return out;
}

Batch Batch::samples(std::int64_t first, std::int64_t count) const {
  Batch part;
  for (const auto& [name, tensor] : tensors_)
    part.set(name, tensor.narrow(0, first, count));
  part.sample_ids.assign(sample_ids.begin() + first, sample_ids.begin() + first + count);
  return part;
}

Outcome Block::idle(std::vector<at::Tensor>& /*inputs*/, StepContext& /*context*/) {
  throw Error(Error::Kind::Bug,
              "a block exchanges values with ranks that have other samples, and cannot do so "
              "without samples of its own",
              "override Block::idle(), which makes the collectives of forward() with no rows");
}

namespace {

std::shared_ptr<Param> make(
    std::string name, Shape shape, std::vector<LogicalAxis> axes, Init init, Params::Tags tags) {
  TESSERA_REQUIRE(std::all_of(shape.begin(), shape.end(), [](auto size) { return size >= 1; }),
                  Shape,
                  fmt::format("parameter {} has the shape [{}]", name, fmt::join(shape, ", ")),
                  "give every dim its size, at least 1: none is inferred");
  TESSERA_REQUIRE(axes.size() == shape.size(),
                  Shape,
                  "parameter " + name + " has " + std::to_string(shape.size()) + " dims and " +
                      std::to_string(axes.size()) + " logical axes",
                  "give each dim its logical axis, LogicalAxis::None where it has none");
  ParamInfo info;
  info.name = std::move(name);
  const bool stacked = !axes.empty() && axes.front() == LogicalAxis::Expert;
  info.matrix_shape = !tags.matrix_shape.empty()
                          ? std::move(tags.matrix_shape)
                          : Shape(shape.begin() + (stacked ? 1 : 0), shape.end());
  info.shape = std::move(shape);
  info.role = tags.role.value_or(role_of(info.shape, axes, info.matrix_shape));
  const bool table = info.role == Role::TokenTable || info.role == Role::PositionTable;
  TESSERA_REQUIRE(
      !table || info.shape.size() == 2,
      Shape,
      fmt::format(
          "parameter {} is declared as a table and has {} dims", info.name, info.shape.size()),
      "give a table two dims, its rows and its channels, or another Role");
  info.axes = std::move(axes);
  info.init = init;
  info.trainable = tags.trainable;
  info.spec = std::move(tags.spec);
  info.unit = tags.unit;
  info.inner_unit = tags.inner_unit;
  return std::make_shared<Param>(std::make_shared<const ParamInfo>(std::move(info)));
}

}  // namespace

Param* Params::add(std::string name,
                   Shape global,
                   std::vector<LogicalAxis> logical_axes,
                   Init init) {
  return add(std::move(name), std::move(global), std::move(logical_axes), init, Tags{});
}

Param* Params::add(
    std::string name, Shape global, std::vector<LogicalAxis> logical_axes, Init init, Tags tags) {
  if (!tags.without_prefix && !prefix_.empty()) name = prefix_ + "." + name;
  list_.push_back(
      make(std::move(name), std::move(global), std::move(logical_axes), init, std::move(tags)));
  return list_.back().get();
}

Param* Params::tied(std::string global_name,
                    Shape global,
                    std::vector<LogicalAxis> logical_axes,
                    Init init) {
  return tied(std::move(global_name), std::move(global), std::move(logical_axes), init, Tags{});
}

Param* Params::tied(std::string global_name,
                    Shape global,
                    std::vector<LogicalAxis> logical_axes,
                    Init init,
                    Tags tags) {
  const auto plain = make(
      std::move(global_name), std::move(global), std::move(logical_axes), init, std::move(tags));
  ParamInfo info = plain->info();
  info.tied = true;
  list_.push_back(std::make_shared<Param>(std::make_shared<const ParamInfo>(std::move(info))));
  return list_.back().get();
}

bool is_layer(const BlockSpec& block) {
  const std::size_t dot = block.name.rfind('.');
  return dot != std::string::npos && dot + 1 < block.name.size() &&
         block.name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
}

std::unique_ptr<Block> make_block(const BlockSpec& spec, Params& params) {
  std::unique_ptr<Block> block = spec.make ? spec.make() : nullptr;
  TESSERA_REQUIRE(block != nullptr,
                  Config,
                  fmt::format("BlockSpec::make of \"{}\" gives no block", spec.name),
                  "let it return a std::unique_ptr to a new block");
  block->declare(params);
  if (spec.adapt) spec.adapt(params);
  return block;
}

ParamInfos declared_by(const BlockSpec& spec) {
  if (spec.declared) return *spec.declared;
  Params params(spec.name);
  (void)make_block(spec, params);
  ParamInfos out;
  for (const auto& param : params.list())
    out.push_back(param->shared_info());
  return out;
}

void declare_all(Model& model) {
  std::set<std::string_view> blocks;
  std::map<std::string_view, const ParamInfo*> params;
  for (BlockSpec& spec : model.blocks) {
    TESSERA_REQUIRE(blocks.insert(spec.name).second,
                    Config,
                    fmt::format("two blocks of the model are called \"{}\"", spec.name),
                    "give every BlockSpec a name of its own, such as \"h.0\" and \"h.1\"");
    if (!spec.declared) spec.declared = std::make_shared<const ParamInfos>(declared_by(spec));
    for (const auto& info : *spec.declared) {
      const auto [known, fresh] = params.emplace(info->name, info.get());
      if (fresh) continue;
      TESSERA_REQUIRE(known->second->tied && info->tied,
                      Config,
                      fmt::format("two parameters of the model are called \"{}\"", info->name),
                      "give every parameter of a block a name of its own; a parameter that blocks "
                      "share is declared with Params::tied() in each of them");
      TESSERA_REQUIRE(
          known->second->shape == info->shape,
          Config,
          fmt::format("blocks that share \"{}\" declare it with different shapes, [{}] and "
                      "[{}]",
                      info->name,
                      fmt::join(known->second->shape, ", "),
                      fmt::join(info->shape, ", ")),
          "declare it alike in every block");
    }
  }
}

ParamInfos parameters_of(const Model& model) {
  ParamInfos out;
  std::set<std::string> names;
  for (const BlockSpec& block : model.blocks) {
    for (const auto& info : declared_by(block)) {
      if (names.insert(info->name).second) out.push_back(info);
    }
  }
  return out;
}

}  // namespace tessera::nn
