// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/compressed/compressed_state.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/memory/ledger.h"
#include "tessera/ops/fused_adamw.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/parallel/planned_buffers.h"

namespace tessera::parallel {
namespace {

template <class T>
std::span<std::byte> bytes_of(T* data, std::int64_t count) {
  return {reinterpret_cast<std::byte*>(data), static_cast<std::size_t>(count) * sizeof(T)};
}

/// Elements [begin, end) of a tensor of `shape`.
checkpoint::PieceBytes piece_of(const std::string& name,
                                const std::vector<std::int64_t>& shape,
                                std::int64_t begin,
                                std::int64_t end,
                                float* data) {
  return {name, DType::F32, shape, {mesh::whole(shape), begin, end}, bytes_of(data, end - begin)};
}

const checkpoint::Checkpoint::Tensor* find(const checkpoint::Checkpoint& checkpoint,
                                           const std::string& name) {
  for (const auto& tensor : checkpoint.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

double square_sum(const at::Tensor& x) {
  std::vector<double> sums(static_cast<std::size_t>((x.numel() + kChunk - 1) / kChunk));
  ops::chunk_square_sums(x.const_data_ptr<float>(), x.numel(), kChunk, sums.data());
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

}  // namespace

std::int64_t CompressedState::bytes(const PlannedStage& stage, const optim::Rule& rule) {
  // An element has the whole vector instead of a shard of state[0], the error feedback and the
  // messages of CompressedReduce, and separate masters.
  const bool local = rule.compressed()->local_weights();
  const bool several = !stage.buffers.empty() && stage.buffers.front().ranks.fold > 1;
  std::int64_t out = 0, largest = 0;
  for (const PlannedBuffer& buffer : stage.buffers) {
    if (!buffer.group.trainable) continue;
    const double n = buffer.ranks.fold;
    double each = local && stage.working == DType::F32 ? 4 : 0;
    if (stage.zero_stage > 0) each += 4 - 4 / n;
    if (several) each += 4 + 4 / n + 3.0 / 8;
    out += static_cast<std::int64_t>(each * static_cast<double>(buffer.layout.numel()));
    for (const Segment& segment : buffer.layout.segments())
      largest = std::max(largest, segment.numel);
  }
  // Momenta are completed one tensor after the other, with a buffer of the same size.
  if (stage.zero_stage >= 1 && several) out += 8 * largest;
  return out;
}

CompressedState::CompressedState(comm::World& world,
                                 ModelInstance& model,
                                 const optim::CompressedRule& rule)
    : world_(world), rule_(rule), group_(*model.only_fold("this optimizer").fold) {
  index_.resize(model.groups().size());
  std::vector<std::int64_t> lengths;
  for (const auto& [g, p] : model.canonical_order()) {
    const FlatGroup& group = model.groups()[static_cast<std::size_t>(g)];
    if (!group.trainable) continue;
    auto& of_group = index_[static_cast<std::size_t>(g)];
    of_group.resize(group.layout.segments().size());
    const FlatParam& param = group.layout.params()[static_cast<std::size_t>(p)];
    for (std::size_t s = param.first; s < param.first + param.count; ++s) {
      const Segment& place = group.layout.segments()[s];
      of_group[s] = tensors_.size();
      tensors_.push_back({g, static_cast<int>(s), &place, facts_of(place), {}, {}, group.counted});
      tensors_.back().scalars.resize(static_cast<std::size_t>(rule_.num_scalars()));
      if (rule_.fused() && !lengths.empty()) {
        lengths.front() += place.numel;
      } else {
        lengths.push_back(place.numel);
      }
    }
  }
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  if (group_.size() > 1 && !lengths.empty())
    reduce_ = std::make_unique<CompressedReduce>(world, group_, lengths);
  flat_ = at::zeros({reduce_ ? reduce_->numel()
                             : std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})},
                    at::kFloat);
  std::int64_t at = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (reduce_ && !rule_.fused()) at = reduce_->vectors()[i].begin;
    tensors_[i].exchanged = flat_.narrow(0, at, tensors_[i].place->numel);
    at += tensors_[i].place->numel;
  }
}

CompressedState::Tensor& CompressedState::tensor(int group, int segment) {
  return tensors_[index_[static_cast<std::size_t>(group)][static_cast<std::size_t>(segment)]];
}

/// One rank has each element and the others have zero, so the sum over the ranks is exact. It runs
/// tensor by tensor, because a second vector of all elements would be the peak memory of the run.
void CompressedState::gather(const std::vector<at::Tensor>& own) {
  for (Tensor& tensor : tensors_) {
    const std::int64_t begin = tensor.exchanged.storage_offset(),
                       end = begin + tensor.exchanged.numel();
    const at::Tensor whole = at::zeros({tensor.exchanged.numel()}, at::kFloat);
    for (const at::Tensor& range : own) {
      if (range.storage_offset() < begin || range.storage_offset() >= end) continue;
      whole.narrow(0, range.storage_offset() - begin, range.numel()).copy_(range);
    }
    const auto work = world_.host_transport().all_reduce(
        group_,
        {whole.data_ptr(), static_cast<std::size_t>(whole.numel()), DType::F32, {}},
        comm::Op::Sum,
        TESSERA_HERE("gather momenta before they are compressed"));
    work->wait();
    work->wait_reusable();
    tensor.exchanged.copy_(whole);
  }
}

void CompressedState::start() {
  std::vector<optim::MomentumSize> momenta;
  for (Tensor& tensor : tensors_) {
    const double mean =
        square_sum(tensor.exchanged) / static_cast<double>(tensor.exchanged.numel());
    momenta.push_back({std::sqrt(mean), tensor.scalars});
  }
  rule_.start(momenta);
}

void CompressedState::mean() {
  if (!reduce_) return;
  reduce_->mean(flat_.data_ptr<float>());
  exchanged_ = true;
}

void CompressedState::forget() {
  if (reduce_) reduce_->forget();
}

void CompressedState::add_rank_state(const std::string& state,
                                     const Tensor& tensor,
                                     float* data,
                                     std::int64_t numel) {
  rank_states_.push_back({fmt::format("optimizer.{}.{}", state, tensor.facts.name),
                          data,
                          numel,
                          numel,
                          tensor.counted});
}

std::vector<CompressedState::Errors> CompressedState::errors() const {
  std::vector<Errors> out;
  if (!reduce_) return out;
  for (std::size_t i = 0; i < reduce_->vectors().size(); ++i) {
    const std::string name = rule_.fused() ? "all" : tensors_[i].facts.name;
    out.push_back({"optimizer.worker_error." + name,
                   "optimizer.server_error." + name,
                   i,
                   rule_.fused() || tensors_[i].counted});
  }
  return out;
}

void CompressedState::add_pieces(std::vector<checkpoint::PieceBytes>& out,
                                 const std::vector<bool>& first_here) {
  const std::int64_t n = group_.size(), r = group_.index;
  for (const RankVector& row : rank_states_) {
    if (!row.counted) continue;
    out.push_back(
        piece_of(row.name, {n, row.length}, r * row.length, (r + 1) * row.length, row.data));
  }
  if (exchanged_) add_error_pieces(out);
  const std::int64_t count = rule_.num_scalars();
  for (std::size_t i = 0; i < tensors_.size() && count > 0; ++i) {
    if (!first_here[i]) continue;
    out.push_back({"optimizer.scalars." + tensors_[i].facts.name,
                   DType::F64,
                   {count},
                   {mesh::whole({count}), 0, count},
                   bytes_of(tensors_[i].scalars.data(), count)});
  }
}

void CompressedState::add_error_pieces(std::vector<checkpoint::PieceBytes>& out) {
  const std::int64_t n = group_.size(), r = group_.index;
  for (const Errors& error : errors()) {
    if (!error.counted) continue;
    const std::int64_t length = reduce_->vectors()[error.vector].padded, part = length / n;
    out.push_back(piece_of(error.worker,
                           {n, length},
                           r * length,
                           (r + 1) * length,
                           reduce_->worker_error(error.vector).data()));
    out.push_back(piece_of(error.server,
                           {length},
                           r * part,
                           (r + 1) * part,
                           reduce_->server_error(error.vector).data()));
  }
}

void CompressedState::load(const checkpoint::Checkpoint& checkpoint) {
  forget();
  exchanged_ = false;
  for (const RankVector& state : rank_states_)
    load_rows(checkpoint, state);
  for (const Errors& error : errors()) {
    if (!checkpoint.has(error.worker)) continue;
    const CompressedReduce::Vector& vector = reduce_->vectors()[error.vector];
    load_rows(
        checkpoint,
        {error.worker, reduce_->worker_error(error.vector).data(), vector.numel, vector.padded});
    load_server(checkpoint, error);
    exchanged_ = true;
  }
  const std::int64_t count = rule_.num_scalars();
  for (Tensor& tensor : tensors_) {
    if (count == 0) break;
    const checkpoint::PieceBytes piece{"optimizer.scalars." + tensor.facts.name,
                                       DType::F64,
                                       {count},
                                       {mesh::whole({count}), 0, count},
                                       bytes_of(tensor.scalars.data(), count)};
    checkpoint.load({&piece, 1});
  }
}

/// Loads this rank's row, or the mean of the rows if another number of ranks wrote them.
void CompressedState::load_rows(const checkpoint::Checkpoint& checkpoint, const RankVector& to) {
  const std::int64_t n = group_.size(), r = group_.index;
  const auto* stored = find(checkpoint, to.name);
  const std::vector<std::int64_t> own = {n, to.length};
  // The load itself reports missing entries and wrong sizes.
  if (stored == nullptr || stored->shape.size() != 2 || stored->shape[1] < to.numel ||
      stored->shape == own) {
    const auto piece = piece_of(to.name, own, r * to.length, (r + 1) * to.length, to.data);
    checkpoint.load({&piece, 1});
    return;
  }
  const std::int64_t rows = stored->shape[0], length = stored->shape[1];
  std::vector<float> row(static_cast<std::size_t>(length));
  std::vector<double> sum(static_cast<std::size_t>(to.numel), 0.0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto piece = piece_of(to.name, stored->shape, i * length, (i + 1) * length, row.data());
    checkpoint.load({&piece, 1});
    for (std::size_t k = 0; k < sum.size(); ++k)
      sum[k] += row[k];
  }
  for (std::size_t k = 0; k < sum.size(); ++k)
    to.data[k] = static_cast<float>(sum[k] / static_cast<double>(rows));
}

/// Owners may have other parts, and other padding, than the ranks that wrote the checkpoint.
void CompressedState::load_server(const checkpoint::Checkpoint& checkpoint, const Errors& errors) {
  const auto* stored = find(checkpoint, errors.server);
  const CompressedReduce::Vector& vector = reduce_->vectors()[errors.vector];
  const std::span<float> error = reduce_->server_error(errors.vector);
  const auto part = static_cast<std::int64_t>(error.size());
  const std::int64_t begin = group_.index * part;
  const std::vector<std::int64_t> own = {vector.padded};
  // Padding belongs to this layout; it is zero if another layout wrote the checkpoint.
  const bool same = stored == nullptr || stored->shape.size() != 1 ||
                    stored->shape[0] < vector.numel || stored->shape == own;
  const std::int64_t end = same ? begin + part : std::min(begin + part, vector.numel);
  if (begin >= end) return;
  const auto piece = piece_of(errors.server, same ? own : stored->shape, begin, end, error.data());
  checkpoint.load({&piece, 1});
}

}  // namespace tessera::parallel
