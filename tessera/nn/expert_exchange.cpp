// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/expert_exchange.h"

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
                               bool meta) {
  const auto E = static_cast<std::int64_t>(counts.size());
  if (context.experts != nullptr && context.experts->group->size() > 1) ranks_ = context.experts;
  if (ranks_ == nullptr) {
    own_ = {0, E};
    list_units(counts, E);
    return;
  }
  sources_ = ranks_->group->size();
  own_ = mesh::even_cut(E, 1, sources_, ranks_->group->index);
  const std::vector<std::int64_t> counts_SE = gathered(*ranks_, counts, meta, context);
  parts_.assign(index(sources_) * index(sources_), 0);
  for (int source = 0; source < sources_; ++source) {
    for (int owner = 0; owner < sources_; ++owner) {
      const auto [first, last] = mesh::even_cut(E, 1, sources_, owner);
      const auto row = counts_SE.begin() + source * E;
      parts_[index(source) * index(sources_) + index(owner)] =
          std::accumulate(row + first, row + last, std::int64_t{0});
    }
  }
  list_units(counts_SE, E);
}

void ExpertExchange::list_units(const std::vector<std::int64_t>& counts_SE,
                                std::int64_t num_experts) {
  for (int source = 0; source < sources_; ++source) {
    for (std::int64_t expert = own_.first; expert < own_.second; ++expert) {
      const std::int64_t rows = counts_SE[index(source * num_experts + expert)];
      if (rows == 0) continue;
      units_.push_back({source, expert - own_.first, rows_, rows});
      rows_ += rows;
    }
  }
}

at::Tensor ExpertExchange::to_owners(const at::Tensor& rows_RC,
                                     const char* what,
                                     StepContext& context) const {
  return ranks_ == nullptr ? rows_RC : exchange(rows_RC, parts_, what, context);
}

at::Tensor ExpertExchange::to_sources(const at::Tensor& rows_QC,
                                      const char* what,
                                      StepContext& context) const {
  if (ranks_ == nullptr) return rows_QC;
  std::vector<std::int64_t> back(parts_.size());
  const std::size_t n = index(sources_);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j)
      back[j * n + i] = parts_[i * n + j];
  }
  return exchange(rows_QC, back, what, context);
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
