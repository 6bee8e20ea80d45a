// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/expert_exchange.h"

#include <algorithm>
#include <numeric>

#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/tensor_parallel/transfers.h"

namespace tessera::nn {
namespace {

using namespace detail;

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// [S, E]: the rows of every source for every expert.
std::vector<std::int64_t> gathered(const ExpertParallel& ranks,
                                   const std::vector<std::int64_t>& counts,
                                   bool meta,
                                   const StepContext& context) {
  std::vector<std::int64_t> out;
  if (meta) {  // balanced
    for (int source = 0; source < ranks.group->size(); ++source)
      out.insert(out.end(), counts.begin(), counts.end());
    return out;
  }
  const std::vector<double> mine(counts.begin(), counts.end());
  for (const double count :
       ranks.world->all_gather(*ranks.group, mine, site(context, "numbers of tokens for experts")))
    out.push_back(static_cast<std::int64_t>(count));
  return out;
}

}  // namespace

ExpertExchange::ExpertExchange(StepContext& context,
                               const std::vector<std::int64_t>& counts,
                               std::int64_t tokens,
                               bool meta)
    : rows_(std::accumulate(counts.begin(), counts.end(), std::int64_t{0})) {
  const auto E = static_cast<std::int64_t>(counts.size());
  if (context.experts != nullptr && context.experts->group->size() > 1) ranks_ = context.experts;
  std::vector<std::int64_t> counts_SE = counts;
  int mine = 0;
  if (ranks_ != nullptr) {
    sources_ = ranks_->group->size();
    slices_ = ranks_->world->mesh().size(ranks_->fold.ep & mesh::AxisSet::dp());
    mine = ranks_->group->index;
    counts_SE = gathered(*ranks_, counts, meta, context);
  }
  own_ = mesh::even_cut(E, 1, sources_, mine);
  rounds_ = rounds_of(counts_SE, sources_, mine);
  const std::int64_t experts = own_.second - own_.first;
  has_rows_.assign(index(slices_ * experts), false);
  for (const ExpertRound& round : rounds_) {
    for (const ExpertUnit& unit : round.units)
      has_rows_[index(slice_of(unit.source) * experts + unit.expert)] = true;
  }
  if (meta && ranks_ != nullptr) {
    const std::int64_t room = rows_of_round(E, sources_, rows_, tokens);
    spare_ = std::max<std::int64_t>(0, room - rounds_.front().rows);
  }
}

bool ExpertExchange::has_rows(int slice, std::int64_t expert) const {
  return has_rows_[index(slice * (own_.second - own_.first) + expert)];
}

at::Tensor ExpertExchange::to_owners(const at::Tensor& rows_RC,
                                     const ExpertRound& round,
                                     const char* what,
                                     StepContext& context) const {
  if (ranks_ == nullptr) return rows_RC;
  if (rounds_.size() == 1) return exchange(rows_RC, round.parts, what, context);
  std::vector<at::Tensor> parts;
  for (const auto& [begin, count] : round.sent)
    parts.push_back(rows_RC.narrow(0, begin, count));
  return exchange(at::cat(parts), round.parts, what, context);
}

void ExpertExchange::to_sources(const at::Tensor& rows_QC,
                                const ExpertRound& round,
                                at::Tensor& all_RC,
                                const char* what,
                                StepContext& context) const {
  if (ranks_ == nullptr) {
    all_RC = rows_QC;
    return;
  }
  std::vector<std::int64_t> back(round.parts.size());
  const std::size_t n = index(sources_);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      back[j * n + i] = round.parts[i * n + j];
  }
  const at::Tensor coming = exchange(rows_QC, back, what, context);
  if (rounds_.size() == 1) {
    all_RC = coming;
    return;
  }
  if (!all_RC.defined()) all_RC = at::empty({rows_, rows_QC.size(1)}, rows_QC.options());
  std::int64_t at = 0;
  for (const auto& [begin, count] : round.sent) {
    all_RC.narrow(0, begin, count).copy_(coming.narrow(0, at, count));
    at += count;
  }
}

/// `parts`: rows from member i to member j, [S, S].
at::Tensor ExpertExchange::exchange(const at::Tensor& rows,
                                    const std::vector<std::int64_t>& parts,
                                    const char* what,
                                    StepContext& context) const {
  const std::int64_t C = rows.size(1);
  const std::size_t n = index(sources_), mine = index(ranks_->group->index);
  std::int64_t coming = 0;
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    counts.push_back(parts[i] * C);
    if (i % n == mine) coming += parts[i];
  }
  const at::Tensor in = rows.contiguous(), out = at::empty({coming, C}, rows.options());
  finish(ranks_->world->transport().all_to_all_v(
      *ranks_->group, span_of(in), span_of(out), counts, site(context, what)));
  return out;
}

}  // namespace tessera::nn
