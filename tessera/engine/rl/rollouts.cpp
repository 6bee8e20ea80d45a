// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/rl/rollouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/data/sample_order.h"
#include "tessera/engine/rl/alarms.h"
#include "tessera/engine/rl/completions.h"
#include "tessera/engine/rl/critic.h"
#include "tessera/engine/rl/estimators.h"
#include "tessera/engine/rl/ledger.h"
#include "tessera/engine/rl/reference_model.h"
#include "tessera/engine/rl/report.h"
#include "tessera/engine/rl/reward_values.h"
#include "tessera/engine/shared_values.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"

// Legend: B completions of a rollout, T tokens of a prompt with its completion.
namespace tessera::engine::rl {
namespace {

/// The position of a step: the policy with `version` updates wrote the rollout, of which this is
/// update number `update` of tasks::RlOptions::updates().
struct Place {
  std::int64_t version = 0, update = 0;
  std::int64_t epoch = 0, rollout = 0;  ///< number of the rollout in its epoch
};

class Rollouts final : public Experience {
 public:
  Rollouts(const planner::Plan& plan,
           const tasks::Rl& task,
           comm::World& world,
           TrainState& policy,
           const tasks::Prompts& prompts)
      : plan_(plan),
        task_(task),
        options_(task.options()),
        world_(world),
        policy_(policy),
        prompts_(prompts),
        order_(prompts.count(), plan.config.data.shuffle, seed()),
        size_(options_.rollout_size(plan.global_batch)) {
    if (options_.parity == tasks::Parity::Exact) alone_.emplace();
    if (task_.has_critic()) critic_ = std::make_unique<Critic>(plan_, options_, world_);
  }

  void begin(std::int64_t step, const std::filesystem::path& run_dir, Keeping keeping) override {
    if (critic_ != nullptr && step == 0) critic_->initialize_weights();
    const std::filesystem::path file = run_dir.empty() ? run_dir : run_dir / "rollouts.jsonl";
    if (keeping == Keeping::Replay) {
      replayed_ = file;  // and nothing else is asked
      return;
    }
    rewards_.emplace(task_.rewards(), plan_, world_);
    if (task_.has_reference()) reference_ = open_reference(plan_, options_, world_);
    if (run_dir.empty() || !world_.is_leader()) return;
    kept_ = read_rollout(file, step, names());
    ledger_.emplace(file, step);
  }

  void make(const data::GlobalBatch& batch) override {
    const Place place = place_of(batch);
    if (place.version != version_) {
      version_ = place.version;
      if (!replayed_.empty() && world_.is_leader())
        kept_ = read_rollout(replayed_, version_, names());
      write(place);
      judge(place);
      kept_.reset();
    }
    update_ = place.update;
  }

  [[nodiscard]] nn::Batch samples(std::int64_t first, std::int64_t end) const override {
    const std::int64_t from = update_ % options_.mini_batches * plan_.global_batch + first;
    const auto part = [&](const at::Tensor& of_BT) { return of_BT.narrow(0, from, end - first); };
    nn::Batch out;
    out.set("input_ids", part(rows_.input_ids_BT));
    out.set("labels", part(learned_labels_BT_));
    out.set("advantages", part(advantages_BT_));
    if (old_BT_.defined()) out.set("old", part(old_BT_));
    if (reference_BT_.defined() && options_.kl.place == tasks::KlPlace::Loss)
      out.set("reference", part(reference_BT_));
    for (std::int64_t i = first; i < end; ++i)
      out.sample_ids.push_back(version_ * size_ + from - first + i);
    return out;
  }

  void learn(Metrics& metrics) override {
    check_first_update(metrics);
    if (critic_ != nullptr) {
      const std::int64_t from = update_ % options_.mini_batches * plan_.global_batch;
      critic_->learn(rows_, learned_labels_BT_, from, metrics);
    }
    metrics.insert(metrics.end(), metrics_.begin(), metrics_.end());
  }

  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces() override {
    return critic_ != nullptr ? critic_->pieces() : std::vector<checkpoint::PieceBytes>();
  }
  void release_pieces() override {
    if (critic_ != nullptr) critic_->release_pieces();
  }
  void load(const checkpoint::Checkpoint& checkpoint) override {
    if (critic_ != nullptr) critic_->load(checkpoint);
  }

 private:
  [[nodiscard]] std::uint64_t seed() const {
    return static_cast<std::uint64_t>(plan_.config.trainer.seed);
  }
  [[nodiscard]] std::int64_t updates() const { return options_.updates(); }

  [[nodiscard]] Place place_of(const data::GlobalBatch& batch) const {
    const std::int64_t number = batch.first / plan_.global_batch;
    return {.version = policy_.steps() - number % updates(),
            .update = number % updates(),
            .epoch = batch.epoch,
            .rollout = number / updates()};
  }

  /// Returns the prompt of completion number `number` of a rollout. Rollouts at the end of the data
  /// continue with its beginning.
  [[nodiscard]] std::int64_t prompt_of(const Place& place, std::int64_t number) const {
    const std::int64_t position = (place.rollout * size_ + number) / options_.samples;
    return order_(place.epoch, position % prompts_.count());
  }
  [[nodiscard]] std::uint64_t seed_of(std::int64_t number) const {
    return mix64(mix64(seed(), static_cast<std::uint64_t>(version_)),
                 static_cast<std::uint64_t>(number));
  }
  [[nodiscard]] const std::vector<std::int32_t>& prompt_ids(const Completion& of) const {
    return prompts_.prompt(of.prompt).ids;
  }

  /// Returns the numbers of completions that are generated together. They are the same on any
  /// number of ranks.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> units(const Place& place) const {
    std::vector<std::size_t> lengths;
    for (std::int64_t first = 0; first < size_; first += options_.samples)
      lengths.push_back(prompts_.prompt(prompt_of(place, first)).ids.size());
    return units_of(lengths, options_.samples, options_.prompts_at_once);
  }

  void write(const Place& place) {
    const double start = now_s();
    completions_.assign(static_cast<std::size_t>(size_), {});
    for (std::int64_t number = 0; number < size_; ++number)
      completions_[static_cast<std::size_t>(number)].prompt = prompt_of(place, number);
    policy_.wait();
    const std::vector<std::vector<std::int64_t>> all = missing(units(place));
    TESSERA_REQUIRE(all.empty() || (place.update == 0 && replayed_.empty()),
                    Format,
                    lacking("completions"),
                    kStartOver);
    const comm::Group& group = world_.group(mesh::AxisSet::dp());
    const auto others = [&](bool mine) {
      return world_
                 .all_reduce(group,
                             {mine ? 1.0 : 0.0},
                             comm::Op::Max,
                             TESSERA_HERE("whether completions go on"))
                 .front() > 0;
    };
    const bool together = plan_.zero_stage == 3 && group.size() > 1;
    for (std::size_t first = 0; first < all.size();
         first += static_cast<std::size_t>(group.size())) {
      const std::size_t mine = first + static_cast<std::size_t>(group.index);
      const std::vector<std::int64_t> numbers =
          mine < all.size() ? all[mine] : std::vector<std::int64_t>();
      std::vector<Draw> draws;
      for (const std::int64_t number : numbers)
        draws.push_back({prompt_ids(at(number)), seed_of(number)});
      const std::vector<Completion> made =
          draw_together(policy_,
                        draws,
                        {.max_new_tokens = options_.max_new_tokens,
                         .temperature = options_.temperature,
                         .end = plan_.tokenizer->end_of_text(),
                         .vocabulary = vocabulary()},
                        together ? others : std::function<bool(bool)>());
      std::vector<std::int64_t> round;
      for (std::size_t u = first;
           u < std::min(all.size(), first + static_cast<std::size_t>(group.size()));
           ++u)
        round.insert(round.end(), all[u].begin(), all[u].end());
      exchange(round, numbers, made);
      keep(round);
    }
    std::vector<RowOf> rows;
    for (const Completion& one : completions_)
      rows.push_back({prompt_ids(one), one.ids});
    rows_ = rows_of(rows, plan_.sequence_length, plan_.tokenizer->padding());
    std::size_t tokens = 0;
    for (const Completion& one : completions_)
      tokens += one.ids.size();
    const double seconds = now_s() - start;
    log::info(fmt::format("after {} updates: {} completions of {} tokens in {:.2f} s, {} tokens/s",
                          version_,
                          size_,
                          tokens,
                          seconds,
                          text::count(static_cast<double>(tokens) / seconds)));
  }

  static constexpr const char* kStartOver =
      "start over with --resume never, or from a checkpoint of a step that is a multiple of "
      "rl.iterations * rl.mini_batches";
  [[nodiscard]] std::string lacking(const char* what) const {
    return fmt::format(
        "rollouts.jsonl lacks {} of the policy of {} updates, which this step learns "
        "from",
        what,
        version_);
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const tasks::RlReward& reward : task_.rewards())
      out.push_back(reward.name);
    return out;
  }

  [[nodiscard]] Completion& at(std::int64_t number) {
    return completions_[static_cast<std::size_t>(number)];
  }
  [[nodiscard]] std::int64_t vocabulary() const {
    return plan_.model.tokenizer_size > 0 ? plan_.model.tokenizer_size : plan_.model.vocab_size;
  }

  /// Returns whether the ledger's completion belongs to that prompt.
  [[nodiscard]] bool fits(const Completion& kept, std::int64_t prompt) const {
    return kept.prompt == prompt && !kept.ids.empty() &&
           std::ssize(kept.ids) <= options_.max_new_tokens &&
           kept.log_probabilities.size() == kept.ids.size() &&
           std::ranges::all_of(kept.ids,
                               [&](std::int32_t id) { return id >= 0 && id < vocabulary(); });
  }

  /// Returns the units whose completions are not all in the ledger; takes over those of the others.
  std::vector<std::vector<std::int64_t>> missing(std::vector<std::vector<std::int64_t>> all) {
    std::vector<double> known(all.size(), 0.0);
    if (kept_ && kept_->version == version_) {
      for (std::size_t u = 0; u < all.size(); ++u) {
        known[u] = std::ranges::all_of(all[u], [&](std::int64_t number) {
          const auto found = kept_->completions.find(number);
          return found != kept_->completions.end() && fits(found->second, at(number).prompt);
        });
      }
    }
    share_values(world_, known, "what the ledger has of a rollout");
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

  /// Gives every rank the completions `numbers`; this rank has those in `mine`.
  void exchange(const std::vector<std::int64_t>& numbers,
                const std::vector<std::int64_t>& mine,
                const std::vector<Completion>& made) {
    constexpr std::size_t kFacts = 3;  // length, end, entropy
    const auto longest = static_cast<std::size_t>(options_.max_new_tokens);
    const std::size_t each = kFacts + 2 * longest;
    std::vector<double> values(numbers.size() * each, 0.0);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const auto place = std::ranges::find(numbers, mine[i]) - numbers.begin();
      double* const to = values.data() + static_cast<std::size_t>(place) * each;
      to[0] = static_cast<double>(made[i].ids.size());
      to[1] = made[i].ended ? 1.0 : 0.0;
      to[2] = made[i].entropy;
      std::ranges::copy(made[i].ids, to + kFacts);
      std::ranges::copy(made[i].log_probabilities, to + kFacts + longest);
    }
    share_values(world_, values, "completions");
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double* const from = values.data() + i * each;
      Completion& to = at(numbers[i]);
      const auto size = static_cast<std::size_t>(from[0]);
      to.ended = from[1] > 0;
      to.entropy = from[2];
      to.ids.assign(size, 0);
      std::transform(from + kFacts, from + kFacts + size, to.ids.begin(), [](double id) {
        return static_cast<std::int32_t>(id);
      });
      to.log_probabilities.assign(from + kFacts + longest, from + kFacts + longest + size);
    }
  }

  void keep(const std::vector<std::int64_t>& numbers) {
    if (!ledger_) return;
    std::vector<json::Value> lines;
    for (const std::int64_t number : numbers) {
      lines.push_back(to_json(version_,
                              number,
                              number % options_.samples,
                              seed_of(number),
                              prompt_ids(at(number)),
                              at(number),
                              text_of(at(number))));
    }
    ledger_->append(lines);
  }

  [[nodiscard]] std::string text_of(const Completion& one) const {
    std::vector<std::int32_t> ids = one.ids;
    if (one.ended) ids.pop_back();
    return text::replace_invalid_utf8(plan_.tokenizer->decode(ids));
  }

  /// Determines rewards and advantages: from the ledger, if an earlier process has computed them.
  void judge(const Place& place) {
    Scored scored;
    scored.mask_BT = rows_.labels_BT.ge(0);
    scored.weights_F = weights_of(task_.rewards());
    const at::Tensor generated_BT = in_columns(rows_, [&](std::int64_t b, std::int64_t token) {
      return at(b).log_probabilities[static_cast<std::size_t>(token)];
    });
    std::vector<Worth> worths = kept_worths();
    bool measured = !worths.empty() && options_.parity != tasks::Parity::Exact;
    // The policy that wrote the rollout no longer exists after updates; its values must be in the
    // ledger.
    TESSERA_REQUIRE(!worths.empty() || (place.update == 0 && replayed_.empty()),
                    Format,
                    lacking("what the completions were worth"),
                    kStartOver);
    if (!worths.empty()) {
      take_over(worths, scored);
    } else {
      const std::vector<std::string> texts = all_texts();
      scored.rewards_BF = rewards_->of(answers(texts), rows_);
      scored.old_BT =
          makes_pass()
              ? output_of_rows(
                    policy_.executor(), world_, rows_, plan_.micro_batch, "log_probabilities")
              : generated_BT;
      measured = makes_pass();
      if (reference_ != nullptr)
        scored.reference_BT = output_of_rows(
            *reference_->executor, world_, rows_, plan_.micro_batch, "log_probabilities");
      if (critic_ != nullptr) scored.values_BT = critic_->values(rows_);
      const Advantages made =
          advantage_estimators().get(options_.advantage.estimator)(scored, options_);
      advantages_BT_ = made.advantages_BT;
      returns_BT_ = made.returns_BT;
    }
    // Without a forward pass the policy is compared with itself.
    old_BT_ = options_.parity != tasks::Parity::Off || needs_old() ? scored.old_BT : at::Tensor();
    reference_BT_ = scored.reference_BT;
    learned_labels_BT_ = rows_.labels_BT.clone();
    for (std::int64_t b = 0; b < size_; ++b) {
      if (!learned(at(b))) learned_labels_BT_[b].fill_(-100);
    }
    if (critic_ != nullptr) critic_->expect(scored.values_BT, returns_BT_);
    if (worths.empty()) keep_worths(scored);
    metrics_ = report_of({.completions = completions_,
                          .scored = scored,
                          .generated_BT = generated_BT,
                          .returns_BT = returns_BT_,
                          .reward_names = names(),
                          .measured = measured && old_BT_.defined()},
                         options_);
    check_parity();
    verified_ = true;
    raise_alarms();
  }

  /// Reports each alarm once it has persisted for some rollouts in a row.
  void raise_alarms() {
    constexpr int kInARow = 10;
    std::map<std::string, int> now;
    for (const Alarm& alarm : alarms_of(metrics_, all_texts())) {
      const int rollouts = now[alarm.name] = alarms_[alarm.name] + 1;
      if (rollouts != kInARow) continue;
      const std::string what = fmt::format("{} (alarm {})", alarm.what, alarm.name);
      TESSERA_REQUIRE(options_.on_alarm == tasks::OnAlarm::Warn, Numeric, what, alarm.fix);
      if (world_.is_leader())
        log::warn(fmt::format("after {} updates: {}; {}", version_, what, alarm.fix));
    }
    alarms_ = std::move(now);
  }

  /// Returns whether the log-probabilities of the policy that wrote the rollout are needed besides
  /// those of sampling.
  [[nodiscard]] bool needs_old() const {
    return updates() > 1 || task_.has_reference() || critic_ != nullptr;
  }
  /// Returns whether the log-probabilities of a rollout are computed by a pass of their own.
  [[nodiscard]] bool makes_pass() const {
    if (options_.parity == tasks::Parity::Exact) return !verified_;
    return options_.parity == tasks::Parity::Measure || needs_old();
  }
  [[nodiscard]] bool learned(const Completion& one) const {
    return one.ended || options_.truncated == tasks::Truncated::Keep;
  }

  [[nodiscard]] std::vector<std::string> all_texts() const {
    std::vector<std::string> out;
    for (const Completion& one : completions_)
      out.push_back(text_of(one));
    return out;
  }
  [[nodiscard]] std::vector<tasks::Answer> answers(const std::vector<std::string>& texts) const {
    std::vector<tasks::Answer> out;
    for (std::size_t b = 0; b < texts.size(); ++b) {
      const Completion& one = completions_[b];
      const tasks::Prompt& prompt = prompts_.prompt(one.prompt);
      out.push_back({.record = prompt.record,
                     .place = prompt.place,
                     .prompt = prompt.text,
                     .text = texts[b],
                     .tokens = std::ssize(one.ids),
                     .ended = one.ended});
    }
    return out;
  }

  /// Returns the ledger's values of all completions of this rollout, on every rank; empty if there
  /// are none.
  std::vector<Worth> kept_worths() {
    std::vector<double> known = {0.0};
    if (kept_ && kept_->version == version_) {
      std::int64_t count = 0;
      while (kept_->worths.contains(count))
        ++count;
      if (count == size_) known = {1.0};
    }
    share_values(world_, known, "whether a rollout was judged");
    if (known.front() == 0) return {};
    std::vector<Worth> out(static_cast<std::size_t>(size_));
    const std::size_t F = task_.rewards().size();
    for (std::int64_t b = 0; b < size_; ++b) {
      const std::size_t tokens = at(b).ids.size();
      std::vector<double> values(packed_size(F, tokens), 0.0);
      if (kept_) pack(kept_->worths.at(b), tokens, values);
      share_values(world_, values, "what completions were worth");
      out[static_cast<std::size_t>(b)] = unpacked(values, F, tokens);
    }
    return out;
  }

  void take_over(const std::vector<Worth>& worths, Scored& scored) {
    const auto columns = [&](std::vector<double> Worth::*list) {
      TESSERA_REQUIRE(std::ranges::all_of(worths,
                                          [&](const Worth& one) {
                                            return (one.*list).empty() ==
                                                   (worths.front().*list).empty();
                                          }),
                      Format,
                      lacking("some of what the completions were worth"),
                      kStartOver);
      if ((worths.front().*list).empty()) return at::Tensor();
      return in_columns(rows_, [&](std::int64_t b, std::int64_t token) {
        return (worths[static_cast<std::size_t>(b)].*list)[static_cast<std::size_t>(token)];
      });
    };
    std::vector<double> rewards;
    for (const Worth& worth : worths)
      rewards.insert(rewards.end(), worth.rewards.begin(), worth.rewards.end());
    scored.rewards_BF = at::tensor(rewards, at::kDouble).view({size_, -1});
    scored.old_BT = columns(&Worth::old);
    scored.reference_BT = columns(&Worth::reference);
    scored.values_BT = columns(&Worth::values);
    advantages_BT_ = columns(&Worth::advantages);
    returns_BT_ = columns(&Worth::returns);
  }

  void keep_worths(const Scored& scored) {
    if (!ledger_) return;
    const std::vector<std::string> names = this->names();
    std::vector<json::Value> lines;
    for (std::int64_t b = 0; b < size_; ++b) {
      const at::Tensor mask_T = scored.mask_BT[b];
      const auto list = [&](const at::Tensor& of_BT) {
        if (!of_BT.defined()) return std::vector<double>();
        const at::Tensor own = of_BT[b].masked_select(mask_T).contiguous();
        const auto* const data = own.const_data_ptr<double>();
        return std::vector<double>(data, data + own.numel());
      };
      const at::Tensor rewards_F = scored.rewards_BF[b].contiguous();
      const auto* const rewards = rewards_F.const_data_ptr<double>();
      lines.push_back(to_json(version_,
                              b,
                              Worth{.rewards = {rewards, rewards + rewards_F.numel()},
                                    .old = list(scored.old_BT),
                                    .reference = list(scored.reference_BT),
                                    .values = list(scored.values_BT),
                                    .advantages = list(advantages_BT_),
                                    .returns = list(returns_BT_),
                                    .learned = learned(at(b))},
                              names));
    }
    ledger_->append(lines);
  }

  void check_parity() const {
    const bool exact = options_.parity == tasks::Parity::Exact;
    const double limit = exact ? 0.0 : options_.parity_limit;
    const Metric* const largest = find_metric(metrics_, "parity_max");
    if (largest == nullptr || largest->mean <= limit) return;
    throw Error(
        Error::Kind::Numeric,
        fmt::format("the log-probability of a token differs by {} between sampling and training, "
                    "and {}",
                    largest->mean,
                    exact ? "rl.parity is exact"
                          : fmt::format("rl.parity_limit is {}", options_.parity_limit)),
        exact ? "set rl.parity to measure: a layer of this model computes tokens by other means"
              : "train in fp32, set rl.parity to exact, or raise rl.parity_limit if such "
                "differences are expected");
  }

  /// The training's own forward of the first update must repeat what sampling computed.
  void check_first_update(const Metrics& metrics) const {
    if (options_.parity != tasks::Parity::Exact || update_ != 0) return;
    const Metric* const moved = find_metric(metrics, "moved");
    if (moved == nullptr || moved->mean == 0.0) return;
    throw Error(Error::Kind::Numeric,
                fmt::format("rl.parity is exact, and the first update after a rollout finds "
                            "log-probabilities that differ by {} on average from sampling's",
                            moved->mean),
                "set the model's and the adapter's dropout to 0, or rl.parity to measure");
  }

  const planner::Plan& plan_;
  const tasks::Rl& task_;
  const tasks::RlOptions& options_;
  comm::World& world_;
  TrainState& policy_;
  const tasks::Prompts& prompts_;
  data::SampleOrder order_;
  std::int64_t size_;                          ///< B
  std::optional<ops::BatchInvariance> alone_;  ///< if rl.parity is exact
  bool verified_ = false;                      ///< whether a rollout was compared
  std::optional<RewardValues> rewards_;
  std::unique_ptr<OpenModel> reference_;
  std::unique_ptr<Critic> critic_;
  std::filesystem::path replayed_;   ///< the ledger to learn from again; empty: none
  std::optional<Ledger> ledger_;     ///< on the leader
  std::optional<KeptRollout> kept_;  ///< its contents when the run began
  // The current rollout.
  std::int64_t version_ = -1, update_ = 0;
  std::vector<Completion> completions_;
  Rows rows_;
  at::Tensor learned_labels_BT_, old_BT_, reference_BT_, advantages_BT_, returns_BT_;
  Metrics metrics_;
  std::map<std::string, int> alarms_;  ///< and for how many rollouts in a row
};

}  // namespace

std::unique_ptr<Experience> make_experience(const planner::Plan& plan,
                                            comm::World& world,
                                            TrainState& policy,
                                            const data::Dataset& data) {
  const tasks::Rl* const task = tasks::as_rl(plan.task.get());
  if (task == nullptr) return nullptr;
  const auto* const prompts = dynamic_cast<const tasks::Prompts*>(&data);
  TESSERA_REQUIRE(prompts != nullptr,
                  Config,
                  "the task rl was given other data than prompts",
                  "let the task open data.train");
  return std::make_unique<Rollouts>(plan, *task, world, policy, *prompts);
}

}  // namespace tessera::engine::rl
