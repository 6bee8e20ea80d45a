// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/sent_residuals.h"

#include <span>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"

namespace tessera::parallel {
namespace {

/// Row `row` of a tensor of `rows` residuals of one parameter, at the memory of `residual`.
checkpoint::PieceBytes row_of(const std::string& name,
                              std::int64_t rows,
                              std::int64_t row,
                              const at::Tensor& residual) {
  const std::int64_t numel = residual.numel();
  const std::vector<std::int64_t> shape = {rows, numel};
  return {name,
          DType::BF16,
          shape,
          {mesh::whole(shape), row * numel, (row + 1) * numel},
          {static_cast<std::byte*>(residual.data_ptr()), residual.nbytes()}};
}

}  // namespace

SentResiduals::SentResiduals(const comm::Group& group, ModelInstance& model)
    : group_(group), model_(model) {
  for (const FlatGroup& flat : model_.groups())
    residuals_.emplace_back(flat.uses.size());
  follow_model();
}

void SentResiduals::follow_model() {
  const memory::ScopedTag tag(memory::Tag::Gradients);
  for (std::size_t g = 0; g < residuals_.size(); ++g) {
    const FlatGroup& group = model_.groups()[g];
    for (at::Tensor& residual : residuals_[g]) {
      if (!group.trainable) residual.reset();
      if (group.trainable && !residual.defined())
        residual = at::zeros({group.layout.numel()}, at::kBFloat16);
    }
  }
}

void SentResiduals::forget() {
  for (const std::vector<at::Tensor>& of_group : residuals_) {
    for (const at::Tensor& residual : of_group) {
      if (residual.defined()) residual.zero_();
    }
  }
}

/// Calls fn(name, residual) for every parameter of every use.
template <class Fn>
void SentResiduals::for_each(const Fn& fn) const {
  for (std::size_t g = 0; g < residuals_.size(); ++g) {
    const FlatGroup& group = model_.groups()[g];
    for (std::size_t use = 0; use < residuals_[g].size(); ++use) {
      const at::Tensor& residual = residuals_[g][use];
      if (!residual.defined()) continue;
      for (const Segment& segment : group.layout.segments()) {
        fn(fmt::format("optimizer.residual.{}.{}", group.uses[use].block, segment.name()),
           residual.narrow(0, segment.begin, segment.numel));
      }
    }
  }
}

void SentResiduals::add_pieces(std::vector<checkpoint::PieceBytes>& out) {
  const memory::ScopedTag tag(memory::Tag::Gradients);
  copies_.clear();
  for_each([&](const std::string& name, const at::Tensor& residual) {
    copies_.push_back(residual.clone());
    out.push_back(row_of(name, group_.size(), group_.index, copies_.back()));
  });
}

void SentResiduals::load(const checkpoint::Checkpoint& checkpoint) {
  forget();
  std::unordered_map<std::string_view, std::span<const std::int64_t>> shapes;
  for (const auto& stored : checkpoint.tensors())
    shapes.emplace(stored.name, stored.shape);
  std::vector<checkpoint::PieceBytes> own;
  for_each([&](const std::string& name, const at::Tensor& residual) {
    const auto stored = shapes.find(name);
    if (stored == shapes.end()) return;
    const std::span<const std::int64_t> shape = stored->second;
    const bool fits = shape.size() == 2 && shape[1] == residual.numel();
    if (fits && shape[0] != group_.size()) return load_share(checkpoint, name, shape[0], residual);
    // The load itself reports wrong sizes.
    own.push_back(row_of(name, group_.size(), group_.index, residual));
  });
  checkpoint.load(own);
}

void SentResiduals::load_share(const checkpoint::Checkpoint& checkpoint,
                               const std::string& name,
                               std::int64_t rows,
                               const at::Tensor& residual) const {
  at::Tensor row = at::empty_like(residual), sum = at::zeros({residual.numel()}, at::kFloat);
  for (std::int64_t i = 0; i < rows; ++i) {
    const checkpoint::PieceBytes piece = row_of(name, rows, i, row);
    checkpoint.load({&piece, 1});
    sum.add_(row);
  }
  residual.copy_(sum.div_(group_.size()));
}

}  // namespace tessera::parallel
