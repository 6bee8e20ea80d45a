// SPDX-License-Identifier: Apache-2.0
// Sampling with a paged KV cache and continuous batching (Yu et al. 2022, "Orca: a distributed
// serving system for transformer-based generative models").
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/nn/kv_cache.h"
#include "tessera/nn/page_tables.h"
#include "tessera/nn/step_context.h"
#include "tessera/rlhf/completions.h"

namespace tessera::rlhf {
namespace {

class Drawing {
 public:
  Drawing(parallel::Executor& executor,
          comm::World& world,
          std::span<const Draw> draws,
          const SamplingOptions& options,
          const std::function<bool(bool mine)>& others)
      : executor_(executor),
        world_(world),
        draws_(draws),
        options_(options),
        others_(others),
        at_once_(options.rows > 0 ? static_cast<std::size_t>(options.rows) : draws.size()),
        out_(draws.size()),
        tables_(nn::kPageTokens, options.cache) {
    for (const Draw& draw : draws) {
      if (prompts_.empty() || !std::ranges::equal(prompts_.back().ids, draw.prompt))
        prompts_.push_back({.ids = draw.prompt});
      ++prompts_.back().waiting;
      prompt_of_.push_back(prompts_.size() - 1);
    }
    context_.cache_capacity = most_tokens();
  }

  std::vector<Completion> run() {
    for (;;) {
      while (rows_.size() < at_once_ && next_ < draws_.size())
        admit(std::min(at_once_ - rows_.size(), draws_.size() - next_));
      if (rows_.empty()) break;
      go_on();
    }
    while (others_ && others_(false))
      executor_.infer_nothing();
    return std::move(out_);
  }

 private:
  struct Prompt {
    std::span<const std::int32_t> ids = {};
    std::int64_t waiting = 0;  ///< number of completions that have not begun
    std::size_t sequence = 0;  ///< of the page tables, while completions wait
    std::int64_t row = 0;      ///< in `first`
    /// The distributions of the first token; nullptr: the prompt has not been processed.
    std::shared_ptr<const nn::NextDistributions> first = nullptr;
  };
  /// A completion that is being generated.
  struct Row {
    std::size_t number = 0;    ///< of the draw
    std::size_t sequence = 0;  ///< of the page tables
  };

  /// Returns an upper bound of the tokens for which the cache has pages at a time.
  [[nodiscard]] std::int64_t most_tokens() const {
    const auto whole = [](std::int64_t tokens) {
      return (tokens + nn::kPageTokens - 1) / nn::kPageTokens * nn::kPageTokens;
    };
    const auto rows = static_cast<std::int64_t>(std::min(at_once_, draws_.size()));
    std::int64_t longest = 0, all = 0;
    for (const Prompt& prompt : prompts_) {
      longest = std::max(longest, whole(std::ssize(prompt.ids)));
      all += whole(std::ssize(prompt.ids));
    }
    // A completion has the page that its prompt ends in for itself.
    return std::min(all, (rows + 1) * longest) +
           rows * (whole(options_.max_new_tokens) + nn::kPageTokens);
  }

  /// The objective's logits of the next token of each row, fp32 [rows, vocabulary] on the host.
  at::Tensor next_logits(const nn::Batch& batch) {
    if (others_) (void)others_(true);
    world_.show_life();
    const nn::Outcome outcome = executor_.infer(batch, context_);
    const auto made = outcome.outputs.find("logits");
    TESSERA_REQUIRE(made != outcome.outputs.end(),
                    Shape,
                    "the policy's objective gives no logits of texts that are being made",
                    "choose the task's own objective");
    return made->second.select(1, -1).to(at::kCPU, at::kFloat).contiguous();
  }

  /// Processes prompts of one length.
  void read(const std::vector<std::size_t>& prompts) {
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<std::size_t> sequences;
    for (const std::size_t p : prompts) {
      Prompt& prompt = prompts_[p];
      ids.emplace_back(prompt.ids.begin(), prompt.ids.end());
      prompt.sequence = tables_.begin(std::ssize(prompt.ids));
      sequences.push_back(prompt.sequence);
    }
    nn::Batch batch = engine::prompt_batch(ids, ids.front().size());
    tables_.describe(sequences, batch);
    context_.set_mode(nn::Mode::Prefill);
    context_.position = 0;
    const auto first =
        std::make_shared<const nn::NextDistributions>(next_logits(batch), options_.distribution);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      prompts_[prompts[i]].first = first;
      prompts_[prompts[i]].row = static_cast<std::int64_t>(i);
    }
  }

  /// Begins the next `count` completions.
  void admit(std::size_t count) {
    std::map<std::size_t, std::vector<std::size_t>> unread;  // by length
    for (std::size_t d = next_; d < next_ + count; ++d) {
      const std::size_t p = prompt_of_[d];
      std::vector<std::size_t>& same = unread[prompts_[p].ids.size()];
      if (prompts_[p].first == nullptr && (same.empty() || same.back() != p)) same.push_back(p);
    }
    for (const auto& [length, prompts] : unread) {
      if (!prompts.empty()) read(prompts);
    }
    for (; count > 0; --count, ++next_) {
      Prompt& prompt = prompts_[prompt_of_[next_]];
      take(next_, *prompt.first, prompt.row);
      const bool last = --prompt.waiting == 0;
      if (!done(next_))
        rows_.push_back({next_, last ? prompt.sequence : tables_.fork(prompt.sequence)});
      else if (last)
        tables_.end(prompt.sequence);
      if (last) prompt.first.reset();
    }
  }

  /// Draws the next token of each row.
  void go_on() {
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<std::int64_t> positions;
    std::vector<std::size_t> sequences;
    for (const Row& row : rows_) {
      const std::vector<std::int32_t>& ids = out_[row.number].ids;
      tokens.push_back({ids.back()});
      positions.push_back(std::ssize(draws_[row.number].prompt) + std::ssize(ids) - 1);
      sequences.push_back(row.sequence);
      tables_.make_room(row.sequence, positions.back());
    }
    nn::Batch batch = engine::prompt_batch(tokens, 1);
    tables_.describe(sequences, batch);
    batch.set(nn::kTextPosition, at::tensor(positions, at::kLong));
    context_.set_mode(nn::Mode::Decode);
    context_.position = std::ranges::max(positions);
    const nn::NextDistributions next(next_logits(batch), options_.distribution);
    at::parallel_for(0, std::ssize(rows_), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        take(rows_[static_cast<std::size_t>(i)].number, next, i);
    });
    std::erase_if(rows_, [&](const Row& row) {
      if (!done(row.number)) return false;
      tables_.end(row.sequence);
      return true;
    });
  }

  /// Draws the next token of a completion.
  void take(std::size_t number, const nn::NextDistributions& next, std::int64_t row) {
    Completion& one = out_[number];
    const std::int64_t id =
        next.draw(row, options_.vocabulary, draws_[number].seed, std::ssize(one.ids));
    one.ids.push_back(static_cast<std::int32_t>(id));
    one.log_probabilities.push_back(next.log_probability(row, id));
    one.entropy += next.entropy(row);
    one.ended = std::ranges::find(options_.ends, id) != options_.ends.end();
  }
  [[nodiscard]] bool done(std::size_t number) const {
    return out_[number].ended || std::ssize(out_[number].ids) >= options_.max_new_tokens;
  }

  parallel::Executor& executor_;
  comm::World& world_;
  std::span<const Draw> draws_;
  const SamplingOptions& options_;
  const std::function<bool(bool mine)>& others_;
  std::size_t at_once_;
  std::vector<Completion> out_;
  std::vector<Prompt> prompts_;
  std::vector<std::size_t> prompt_of_;  ///< of each draw
  std::size_t next_ = 0;                ///< the first draw that has not begun
  std::vector<Row> rows_;
  nn::PageTables tables_;
  nn::StepContext context_{nn::Mode::Prefill, 0};
};

}  // namespace

std::vector<Completion> draw_together(parallel::Executor& executor,
                                      comm::World& world,
                                      std::span<const Draw> draws,
                                      const SamplingOptions& options,
                                      const std::function<bool(bool mine)>& others) {
  return Drawing(executor, world, draws, options, others).run();
}

}  // namespace tessera::rlhf
