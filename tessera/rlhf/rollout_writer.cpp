// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/rollout_writer.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/engine/shared_values.h"
#include "tessera/models/family.h"
#include "tessera/nn/low_rank.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"

namespace tessera::rlhf {
namespace {

constexpr double kTellEvery_s = 10;  // between messages about the progress of a rollout

nn::CacheForm form_of(tasks::RlCache cache) {
  if (cache == tasks::RlCache::Same) return nn::CacheForm::Same;
  return cache == tasks::RlCache::BF16 ? nn::CacheForm::BF16 : nn::CacheForm::Int8;
}

}  // namespace

std::int64_t RolloutWriter::first_row(std::int64_t update) const {
  return update % options_.mini_batches * planner::global_batch_of(plan_);
}

RolloutWriter::RolloutWriter(const planner::Plan& plan,
                             const tasks::Rl& task,
                             comm::World& world,
                             parallel::Executor& policy,
                             const tasks::Prompts& prompts)
    : plan_(plan),
      task_(task),
      options_(task.options()),
      world_(world),
      executor_(policy),
      drawers_(&world),
      drawing_(&policy),
      prompts_(prompts),
      order_(prompts.count(), plan.data().options.shuffle, seed()),
      size_(options_.rollout_size(planner::global_batch_of(plan))) {}

void RolloutWriter::draw_with(comm::World& world,
                              parallel::Executor& drawing,
                              std::function<void()> prepare) {
  drawers_ = &world;
  drawing_ = &drawing;
  prepare_drawing_ = std::move(prepare);
}

std::uint64_t RolloutWriter::seed() const {
  return static_cast<std::uint64_t>(planner::seed_of(plan_));
}

Place RolloutWriter::place_of(const data::GlobalBatch& batch, std::int64_t steps) const {
  const std::int64_t number = batch.first / planner::global_batch_of(plan_);
  return {.version = steps - number % updates(),
          .update = number % updates(),
          .epoch = batch.epoch,
          .rollout = number / updates()};
}

std::int64_t RolloutWriter::prompt_of(const Place& place, std::int64_t number) const {
  const std::int64_t position = (place.rollout * size_ + number) / options_.samples;
  return order_(place.epoch, position % prompts_.count());
}

std::uint64_t RolloutWriter::sampling_seed() const {
  return roll_backs_ == 0 ? seed() : mix64(seed(), ~static_cast<std::uint64_t>(roll_backs_));
}

std::int64_t RolloutWriter::other_prompt(std::int64_t group, std::int64_t round) const {
  const std::uint64_t key =
      mix64(mix64(mix64(sampling_seed(), static_cast<std::uint64_t>(version_)),
                  ~static_cast<std::uint64_t>(group)),
            static_cast<std::uint64_t>(round));
  return static_cast<std::int64_t>(key % static_cast<std::uint64_t>(prompts_.count()));
}

std::uint64_t RolloutWriter::seed_of(std::int64_t number, std::int64_t round) const {
  const std::uint64_t first = mix64(mix64(sampling_seed(), static_cast<std::uint64_t>(version_)),
                                    static_cast<std::uint64_t>(number));
  return round == 0 ? first : mix64(first, static_cast<std::uint64_t>(round));
}

const std::vector<std::int32_t>& RolloutWriter::prompt_ids(const Completion& of) const {
  return prompts_.prompt(of.prompt).ids;
}

std::vector<std::vector<std::int64_t>> RolloutWriter::units(
    const std::vector<std::int64_t>& groups) const {
  const std::int64_t S = options_.samples;
  std::vector<std::vector<std::int64_t>> out =
      units_of(std::ssize(groups), S, options_.prompts_at_once);
  for (std::vector<std::int64_t>& unit : out) {
    for (std::int64_t& number : unit)
      number = groups[static_cast<std::size_t>(number / S)] * S + number % S;
  }
  return out;
}

std::int64_t RolloutWriter::tokens_of(std::int64_t update) const {
  const auto first = rows_.lengths.begin() + first_row(update);
  return std::accumulate(first, first + planner::global_batch_of(plan_), std::int64_t{0});
}

void RolloutWriter::write(const Place& place) {
  completions_.assign(static_cast<std::size_t>(size_), {});
  rewards_BF_ = at::Tensor();
  if (was_judged()) {
    take_completions(kept_);
  } else {
    std::vector<std::int64_t> groups = all_groups();
    generate(place, groups, 0);
    for (std::int64_t round = 1; round <= options_.dynamic_rounds; ++round) {
      reward(groups);
      groups = equal_groups();
      if (groups.empty()) break;
      generate(place, groups, round);
    }
    if (options_.dynamic_rounds > 0 && !groups.empty()) reward(groups);
  }
  rows_ = rows_for(all_numbers());
  tell_speed();
}

void RolloutWriter::tell_speed() const {
  log::info(fmt::format(
      "after {} updates: {} completions; {} tokens were generated in {:.2f} s, {} "
      "tokens/s",
      version_,
      size_,
      drawn_.generated,
      drawn_.generate_s,
      text::count(static_cast<double>(drawn_.generated) / std::max(drawn_.generate_s, 1e-9))));
}

Rows RolloutWriter::rows_for(const std::vector<std::int64_t>& numbers) {
  std::vector<RowOf> rows;
  for (const std::int64_t number : numbers)
    rows.push_back({prompt_ids(at(number)), at(number).ids});
  return rows_of(rows, plan_.data().sequence_length, plan_.data().tokenizer->padding());
}

bool RolloutWriter::was_judged() {
  return has_all(kept_, version_, /*judged=*/true);
}

bool RolloutWriter::has_all(const std::optional<KeptRollout>& kept,
                            std::int64_t version,
                            bool judged) {
  std::vector<double> known = {0.0};
  if (kept && kept->version == version) {
    std::int64_t count = 0;
    while ((!judged || kept->worths.contains(count)) && kept->completions.contains(count) &&
           is_valid(kept->completions.at(count)))
      ++count;
    if (count == size_) known = {1.0};
  }
  engine::share_values(world_, known, "what the ledger has of a whole rollout");
  return known.front() > 0;
}

void RolloutWriter::take_completions(const std::optional<KeptRollout>& kept) {
  const std::vector<std::int64_t> all = all_numbers();
  std::vector<std::int64_t> mine;
  std::vector<Completion> from;
  if (kept) {
    mine = all;
    for (const std::int64_t number : all)
      from.push_back(kept->completions.at(number));
  }
  exchange(all, mine, from);
}

void RolloutWriter::reward(const std::vector<std::int64_t>& groups) {
  std::vector<std::int64_t> numbers;
  for (const std::int64_t group : groups) {
    for (std::int64_t s = 0; s < options_.samples; ++s)
      numbers.push_back(group * options_.samples + s);
  }
  const std::vector<std::string> texts = texts_of(numbers);
  const at::Tensor made_NF = rewards_->of(answers(numbers, texts), rows_for(numbers));
  if (!rewards_BF_.defined()) rewards_BF_ = at::zeros({size_, made_NF.size(1)}, at::kDouble);
  rewards_BF_.index_copy_(0, at::tensor(numbers, at::kLong), made_NF);
}

std::vector<std::int64_t> RolloutWriter::equal_groups() const {
  const at::Tensor total_GS =
      (rewards_BF_.nan_to_num() * weights_of(task_.rewards())).sum(1).view({-1, options_.samples});
  const at::Tensor spread_G = total_GS.amax(1) - total_GS.amin(1);
  std::vector<std::int64_t> out;
  for (std::int64_t group = 0; group < spread_G.size(0); ++group) {
    if (spread_G[group].item<double>() == 0.0) out.push_back(group);
  }
  return out;
}

void RolloutWriter::generate(const Place& place,
                             const std::vector<std::int64_t>& groups,
                             std::int64_t round) {
  for (const std::int64_t group : groups) {
    for (std::int64_t s = 0; s < options_.samples; ++s) {
      const std::int64_t number = group * options_.samples + s;
      at(number) = {.prompt = round == 0 ? prompt_of(place, number) : other_prompt(group, round),
                    .seed = seed_of(number, round),
                    .round = round};
    }
  }
  const std::vector<std::vector<std::int64_t>> all = missing(units(groups));
  TESSERA_REQUIRE(all.empty() || (place.update == 0 && replayed_.empty()),
                  Format,
                  lacking("completions"),
                  kStartOver);
  std::optional<nn::MergedAdapters> merged;
  if (options_.fuse_adapter) merged.emplace();
  if (prepare_drawing_ && !all.empty()) prepare_drawing_();
  const comm::Group& group = drawers_->group(mesh::AxisSet::dp());
  const auto others = [&](bool mine) {
    return drawers_
               ->all_reduce(group,
                            {mine ? 1.0 : 0.0},
                            comm::Op::Max,
                            TESSERA_HERE("whether completions go on"))
               .front() > 0;
  };
  const bool together = drawing_ == &executor_ && planner::runs_together(plan_) && group.size() > 1;
  const double start = now_s();
  double told = start;
  std::vector<std::int64_t> written;
  for (std::size_t first = 0; first < all.size(); first += static_cast<std::size_t>(group.size())) {
    const std::size_t mine = first + static_cast<std::size_t>(group.index);
    const std::vector<std::int64_t> numbers =
        mine < all.size() ? all[mine] : std::vector<std::int64_t>();
    std::vector<Draw> draws;
    for (const std::int64_t number : numbers)
      draws.push_back({prompt_ids(at(number)), at(number).seed});
    std::vector<Completion> made =
        draw_together(*drawing_,
                      *drawers_,
                      draws,
                      {.max_new_tokens = options_.max_new_tokens,
                       .distribution = {.temperature = options_.temperature,
                                        .support = {.vocab = 0,
                                                    .top_k = options_.top_k,
                                                    .top_p = options_.top_p}},
                       .ends = prompts_.ends(*plan_.data().tokenizer),
                       .vocabulary = vocabulary(),
                       .rows = options_.completions_at_once,
                       .cache = form_of(options_.cache)},
                      together ? others : std::function<bool(bool)>());
    for (std::size_t i = 0; i < made.size(); ++i) {
      const Completion& open = at(numbers[i]);
      made[i].prompt = open.prompt;
      made[i].seed = open.seed;
      made[i].round = open.round;
    }
    std::vector<std::int64_t> together_made;
    for (std::size_t u = first;
         u < std::min(all.size(), first + static_cast<std::size_t>(group.size()));
         ++u)
      together_made.insert(together_made.end(), all[u].begin(), all[u].end());
    exchange(together_made, numbers, made, Among::Drawers);
    for (const std::int64_t number : together_made)
      drawn_.generated += std::ssize(at(number).ids);
    keep(together_made);
    written.insert(written.end(), together_made.begin(), together_made.end());
    if (const double now = now_s(); now - told >= kTellEvery_s) {
      told = now;
      log::info(
          progress(written,
                   groups.size() * static_cast<std::size_t>(options_.samples),
                   static_cast<double>(drawn_.generated) / (drawn_.generate_s + now - start)));
    }
  }
  drawn_.generate_s += now_s() - start;
}

std::string RolloutWriter::progress(const std::vector<std::int64_t>& written,
                                    std::size_t all,
                                    double tokens_per_s) const {
  std::string out = fmt::format("after {} updates: {} of {} completions are written, {} tokens/s",
                                version_,
                                written.size(),
                                all,
                                text::count(tokens_per_s));
  if (!world_.is_leader()) return out;
  const std::vector<std::string> texts = texts_of(written);
  const bool only_rules = std::ranges::all_of(
      task_.rewards(), [](const tasks::RlReward& reward) { return reward.rule != nullptr; });
  if (const auto reward = mean_of_rules(task_.rewards(), answers(written, texts)))
    out += fmt::format(", mean reward{} {:.3f}", only_rules ? "" : " by rules", *reward);
  return out;
}

std::string RolloutWriter::lacking(const char* what) const {
  return fmt::format(
      "rollouts.jsonl lacks {} of the policy of {} updates, which this step learns "
      "from",
      what,
      version_);
}

std::vector<std::string> RolloutWriter::names() const {
  std::vector<std::string> out;
  for (const tasks::RlReward& reward : task_.rewards())
    out.push_back(reward.name);
  return out;
}

Completion& RolloutWriter::at(std::int64_t number) {
  return completions_[static_cast<std::size_t>(number)];
}

std::int64_t RolloutWriter::vocabulary() const {
  return planner::model_of(plan_).tokenizer_size > 0 ? planner::model_of(plan_).tokenizer_size
                                                     : planner::model_of(plan_).vocab_size;
}

bool RolloutWriter::fits(const Completion& kept, const Completion& wanted) const {
  return kept.prompt == wanted.prompt && kept.seed == wanted.seed && is_valid(kept);
}

bool RolloutWriter::is_valid(const Completion& kept) const {
  return kept.prompt >= 0 && kept.prompt < prompts_.count() && !kept.ids.empty() &&
         std::ssize(kept.ids) <= options_.max_new_tokens &&
         kept.log_probabilities.size() == kept.ids.size() &&
         std::ranges::all_of(kept.ids,
                             [&](std::int32_t id) { return id >= 0 && id < vocabulary(); });
}

std::vector<std::vector<std::int64_t>> RolloutWriter::missing(
    std::vector<std::vector<std::int64_t>> all) {
  std::vector<double> known(all.size(), 0.0);
  if (kept_ && kept_->version == version_) {
    for (std::size_t u = 0; u < all.size(); ++u) {
      known[u] = std::ranges::all_of(all[u], [&](std::int64_t number) {
        const auto found = kept_->completions.find(number);
        return found != kept_->completions.end() && fits(found->second, at(number));
      });
    }
  }
  engine::share_values(world_, known, "what the ledger has of a rollout");
  std::vector<std::int64_t> taken, mine;
  std::vector<Completion> from;
  for (std::size_t u = 0; u < all.size(); ++u) {
    if (known[u] == 0) continue;
    for (const std::int64_t number : all[u]) {
      taken.push_back(number);
      if (!kept_) continue;
      mine.push_back(number);
      from.push_back(kept_->completions.at(number));
    }
  }
  exchange(taken, mine, from);
  std::vector<std::vector<std::int64_t>> out;
  for (std::size_t u = 0; u < all.size(); ++u) {
    if (known[u] == 0) out.push_back(std::move(all[u]));
  }
  return out;
}

void RolloutWriter::exchange(const std::vector<std::int64_t>& numbers,
                             const std::vector<std::int64_t>& mine,
                             const std::vector<Completion>& made,
                             Among among) {
  const std::size_t each = numbers_of_completion(options_.max_new_tokens);
  std::vector<double> values(numbers.size() * each, 0.0);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto place = std::ranges::find(numbers, mine[i]) - numbers.begin();
    to_numbers(
        made[i], options_.max_new_tokens, values.data() + static_cast<std::size_t>(place) * each);
  }
  comm::World& world = among == Among::Drawers ? *drawers_ : world_;
  (among == Among::All ? engine::share_with_all : engine::share_values)(
      world, values, "completions");
  for (std::size_t i = 0; i < numbers.size(); ++i)
    at(numbers[i]) = completion_of_numbers(values.data() + i * each, options_.max_new_tokens);
}

bool RolloutWriter::is_kept(std::int64_t number) const {
  if (!kept_ || kept_->version != version_) return false;
  const auto found = kept_->completions.find(number);
  const Completion& made = completions_[static_cast<std::size_t>(number)];
  return found != kept_->completions.end() && fits(found->second, made) &&
         found->second.ids == made.ids && found->second.log_probabilities == made.log_probabilities;
}

void RolloutWriter::keep(const std::vector<std::int64_t>& numbers) {
  if (!ledger_) return;
  std::vector<json::Value> lines;
  for (const std::int64_t number : numbers) {
    if (is_kept(number)) continue;
    lines.push_back(to_json(version_,
                            number,
                            number % options_.samples,
                            prompt_ids(at(number)),
                            at(number),
                            text_of(at(number))));
  }
  ledger_->append(lines);
}

std::string RolloutWriter::text_of(const Completion& one) const {
  std::vector<std::int32_t> ids = one.ids;
  if (one.ended) ids.pop_back();
  return text::replace_invalid_utf8(plan_.data().tokenizer->decode(ids));
}

std::vector<std::int64_t> RolloutWriter::all_groups() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(size_ / options_.samples));
  std::iota(out.begin(), out.end(), std::int64_t{0});
  return out;
}

std::vector<std::int64_t> RolloutWriter::all_numbers() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(size_));
  std::iota(out.begin(), out.end(), std::int64_t{0});
  return out;
}

std::vector<std::string> RolloutWriter::texts_of(const std::vector<std::int64_t>& numbers) const {
  std::vector<std::string> out;
  for (const std::int64_t number : numbers)
    out.push_back(text_of(completions_[static_cast<std::size_t>(number)]));
  return out;
}

std::vector<tasks::Answer> RolloutWriter::answers(const std::vector<std::int64_t>& numbers,
                                                  const std::vector<std::string>& texts) const {
  std::vector<tasks::Answer> out;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const Completion& one = completions_[static_cast<std::size_t>(numbers[i])];
    const tasks::Prompt& prompt = prompts_.prompt(one.prompt);
    out.push_back({.record = prompt.record,
                   .place = prompt.place,
                   .prompt = prompt.text,
                   .text = texts[i],
                   .tokens = std::ssize(one.ids),
                   .ended = one.ended});
  }
  return out;
}

}  // namespace tessera::rlhf
