// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/weights/sharded.h"

#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/memory/ledger.h"
#include "tessera/tensor/dtype.h"
#include "tessera/tensor/span.h"

namespace tessera::parallel {

ShardedWeights::ShardedWeights(const WeightPlace& place)
    : ShardedWeights(place, place.layout.shard_numel(), place.dtype) {
  own_ = mine();
}

ShardedWeights::ShardedWeights(const WeightPlace& place, std::int64_t part, DType kept_dtype)
    : ComingWeights(place.world, place.layout.numel(), place.dtype),
      name_(place.layout.name()),
      world_(place.world),
      inner_(*place.ranks.inner),
      copies_(*place.ranks.copies),
      part_(part) {
  const std::int64_t kept = part_ * copies_.size();
  region_ = world_.transport().allocate(static_cast<std::size_t>(kept) * size_of(kept_dtype),
                                        memory::Tag::Parameters);
  kept_ = tensor_over(region_, kept, kept_dtype);
}

ShardedWeights::ShardedWeights(const ShardedWeights& lender)
    : ComingWeights(lender),
      name_(lender.name_),
      world_(lender.world_),
      inner_(lender.inner_),
      copies_(lender.copies_),
      region_(lender.region_),
      part_(lender.part_),
      kept_(lender.kept_) {}

std::int64_t ShardedWeights::bytes(const WeightSizes& sizes) {
  return sizes.layout.numel() * static_cast<std::int64_t>(size_of(sizes.dtype)) / sizes.inner;
}

std::unique_ptr<WorkingWeights> ShardedWeights::borrowed() const {
  return std::unique_ptr<WorkingWeights>(new ShardedWeights(*this));
}

void ShardedWeights::start() {
  gather(whole_);
}

void ShardedWeights::gather(const at::Tensor& all) {
  for (const comm::WorkPtr& work : works_)
    work->wait_reusable();
  works_.clear();
  // The parts of one copy's ranks are adjacent, because the ranks of `inner` are neighbours.
  const std::int64_t row = part_ * inner_.size();
  for (std::int64_t copy = 0; copy < copies_.size(); ++copy) {
    works_.push_back(
        world_.transport().all_gather(inner_,
                                      span_of(kept_.narrow(0, copy * part_, part_)),
                                      span_of(all.narrow(0, copy * row, row)),
                                      TESSERA_HERE(fmt::format("gather weights of {}", name_))));
  }
}

void ShardedWeights::wait() {
  post();
  for (const comm::WorkPtr& work : works_)
    work->wait();
}

void ShardedWeights::begin_write() {
  release();
  for (comm::WorkPtr& work : spread_)
    works_.push_back(std::move(work));
  spread_.clear();
  for (const comm::WorkPtr& work : works_) {
    work->wait();
    work->wait_reusable();
  }
  works_.clear();
}

void ShardedWeights::written() {
  spread();
}

void ShardedWeights::spread() {
  if (copies_.size() == 1) return;
  spread_.push_back(
      world_.transport().all_gather(copies_,
                                    span_of(mine()),
                                    span_of(kept_),
                                    TESSERA_HERE(fmt::format("spread weights of {}", name_))));
}

void ShardedWeights::settle() {
  for (const comm::WorkPtr& work : spread_)
    work->wait();
}

namespace {
TESSERA_WEIGHTS("sharded", ShardedWeights);
}  // namespace

}  // namespace tessera::parallel
