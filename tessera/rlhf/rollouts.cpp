// SPDX-License-Identifier: Apache-2.0
#include "tessera/rlhf/rollouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/engine/shared_values.h"
#include "tessera/losses/advantages.h"
#include "tessera/nn/low_rank.h"
#include "tessera/ops/batch_invariance.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/rlhf/ahead_writer.h"
#include "tessera/rlhf/alarms.h"
#include "tessera/rlhf/completions.h"
#include "tessera/rlhf/critic.h"
#include "tessera/rlhf/end_check.h"
#include "tessera/rlhf/estimators.h"
#include "tessera/rlhf/ledger.h"
#include "tessera/rlhf/plan.h"
#include "tessera/rlhf/pretraining_texts.h"
#include "tessera/rlhf/readable.h"
#include "tessera/rlhf/reference_model.h"
#include "tessera/rlhf/report.h"
#include "tessera/rlhf/reward_check.h"
#include "tessera/rlhf/reward_values.h"
#include "tessera/rlhf/roll_back.h"
#include "tessera/rlhf/validation.h"
#include "tessera/rlhf/worths.h"
#include "tessera/tasks/rl/prompts.h"
#include "tessera/tasks/rl/rl.h"

// Legend: B completions of a rollout, T tokens of a prompt with its completion.
namespace tessera::rlhf {
namespace {

class Rollouts final : public engine::Experience, private AheadWriter {
 public:
  Rollouts(const planner::PlanWithData& plan,
           const tasks::Rl& task,
           comm::World& world,
           engine::TrainState& policy,
           const tasks::Prompts& prompts,
           Generators* generators)
      : AheadWriter(plan, task, world, policy, prompts, generators),
        kl_coefficient_(task.options().kl.coefficient),
        drops_(drops(plan)) {
    if (options_.parity == tasks::Parity::Exact) alone_.emplace();
    if (prompts.texts() != nullptr) {
      texts_.emplace(*prompts.texts(),
                     options_.ptx_samples(planner::global_batch_of(plan_)),
                     plan_.data().options.shuffle,
                     seed());
    }
    if (task_.has_critic()) critic_ = std::make_unique<Critic>(plan, options_, world_);
  }

  void begin(std::int64_t step,
             const std::filesystem::path& run_dir,
             engine::Keeping keeping) override {
    if (critic_ != nullptr && step == 0) critic_->initialize_weights();
    const std::filesystem::path file = run_dir.empty() ? run_dir : run_dir / "rollouts.jsonl";
    if (keeping == engine::Keeping::Replay) {
      count_roll_backs(run_dir, step);
      replayed_ = file;  // and nothing else is asked
      return;
    }
    require_generators();
    make_copy();
    rewards_.emplace(task_.rewards(),
                     plan_,
                     world_,
                     options_.models.reward,
                     critic_ != nullptr ? critic_->lender() : Lender());
    if (task_.has_reference() && !is_base_of_policy(plan_, options_))
      reference_ = open_reference(plan_, options_, world_);
    if (step == 0) {
      test_rewards(plan_, task_.rewards(), prompts_, *rewards_, world_, run_dir);
      test_end(run_dir);
    }
    if (run_dir.empty()) return;
    if (reads_ledger()) read_kept(file, step);
    if (!restored_) take_coefficient();  // a checkpoint of an earlier version has none
    count_roll_backs(run_dir, step);
    if (world_.is_leader()) forget_roll_backs_after(run_dir, step);
    world_.barrier(TESSERA_HERE("before the ledger is opened"));
    if (!world_.is_leader()) return;
    ledger_.emplace(file, last_kept(step));
    readable_.emplace(run_dir / "rollouts.txt", plan_.run().printing.steps_per_print, step);
  }

  void make(const data::GlobalBatch& batch) override {
    const Place place = place_of(batch, policy_.steps());
    drawn_ = {};
    if (place.version != version_) {
      version_ = place.version;
      if (!replayed_.empty() && reads_ledger()) kept_ = read_rollout(replayed_, version_, names());
      obtain(place, batch);
      judge(place);
      kept_.reset();
    }
    update_ = place.update;
  }

  [[nodiscard]] nn::Batch samples(std::int64_t first, std::int64_t end) const override {
    const std::int64_t from = first_row(update_) + first;
    const std::int64_t columns = rows_.columns(from, end - first);
    const auto view = [&](const at::Tensor& of_BT) {
      return of_BT.narrow(0, from, end - first).narrow(1, 0, columns);
    };
    const auto part = [&](const at::Tensor& of_BT) { return view(of_BT).contiguous(); };
    nn::Batch out;
    out.set("input_ids", part(rows_.input_ids_BT));
    out.set("labels", part(learned_labels_BT_));
    out.set("advantages", part(made_.advantages_BT));
    if (old_BT_.defined()) out.set("old", part(old_BT_));
    if (found_BT_.defined()) out.set("found", view(found_BT_));
    if (reference_BT_.defined() && options_.kl.place == tasks::KlPlace::Loss)
      out.set("reference", part(reference_BT_));
    for (std::int64_t i = first; i < end; ++i)
      out.sample_ids.push_back(version_ * size_ + from - first + i);
    return out;
  }

  [[nodiscard]] std::int64_t num_further() const override { return texts_ ? texts_->each() : 0; }
  [[nodiscard]] nn::Batch further(std::int64_t first, std::int64_t end) const override {
    return texts_ ? texts_->samples(version_ + update_, first, end) : samples(first, end);
  }

  [[nodiscard]] engine::StepTokens tokens() const override {
    engine::StepTokens out = drawn_;
    out.learned = tokens_of(update_) + num_further() * plan_.data().sequence_length;
    return out;
  }

  void learn(engine::Metrics& metrics) override {
    check_first_update(metrics);
    if (found_BT_.defined()) compare_with_update(metrics);
    add_overlap(metrics, update_);
    if (critic_ != nullptr) critic_->learn(rows_, learned_labels_BT_, first_row(update_), metrics);
    metrics.insert(metrics.end(), metrics_.begin(), metrics_.end());
  }

  engine::EvalReport evaluate(const data::Dataset& held_out, std::int64_t samples) override {
    const auto& prompts = dynamic_cast<const tasks::Prompts&>(held_out);
    TESSERA_ASSERT(rewards_.has_value());
    return validate(
        plan_, task_, world_, policy_, prompts, std::min(prompts.count(), samples), *rewards_);
  }

  void describe(checkpoint::Meta& meta) const override {
    json::Value alarms = json::Value::object();
    for (const auto& [name, rollouts] : alarms_)
      alarms[name] = json::Value::integer(rollouts);
    json::Value& state = meta.extra["rl"] =
        json::Value::object({{"kl_coefficient", json::Value::number(kl_coefficient_)},
                             {"judged", json::Value::integer(judged_)},
                             {"roll_backs", json::Value::integer(roll_backs_)},
                             {"alarms", std::move(alarms)},
                             {"first_rollouts", first_.state()}});
    if (critic_ != nullptr) critic_->describe(state);
  }
  [[nodiscard]] std::vector<checkpoint::PieceBytes> pieces() override {
    collect();
    return critic_ != nullptr ? critic_->pieces() : std::vector<checkpoint::PieceBytes>();
  }
  void release_pieces() override {
    if (critic_ != nullptr) critic_->release_pieces();
  }
  void load(const checkpoint::Checkpoint& checkpoint) override {
    if (critic_ != nullptr) critic_->load(checkpoint);
    const json::Value* const state = checkpoint.meta().extra.find("rl");
    if (state == nullptr) return;
    const json::Value *coefficient = state->find("kl_coefficient"), *judged = state->find("judged"),
                      *alarms = state->find("alarms");
    TESSERA_REQUIRE(
        coefficient != nullptr && coefficient->is_number() && judged != nullptr &&
            alarms != nullptr && alarms->is_object(),
        Format,
        fmt::format(
            "{}: \"rl\" in the metadata is {}", checkpoint.folder().string(), state->dump()),
        "resume from another checkpoint, or start over with --resume never");
    restored_ = true;
    kl_coefficient_ = coefficient->as_double();
    judged_ = judged->as_integer().value_or(-1);
    if (const json::Value* const times = state->find("roll_backs"); times != nullptr)
      roll_backs_ = times->as_integer().value_or(0);
    for (const auto& [name, rollouts] : alarms->members())
      alarms_[name] = static_cast<int>(rollouts.as_integer().value_or(0));
    if (const json::Value* const first = state->find("first_rollouts"); first != nullptr)
      first_ = FirstRollouts(*first);
  }

 private:
  /// Warns if the policy does not end the answers of the records; `run_dir` gets the result in
  /// end_token.json.
  void test_end(const std::filesystem::path& run_dir) {
    policy_.wait();
    const auto found = check_end(
        prompts_, *plan_.data().tokenizer, plan_.data().sequence_length, [&](const Rows& rows) {
          return output_of_rows(policy_.executor(),
                                world_,
                                rows,
                                planner::micro_batch_of(plan_),
                                "log_probabilities");
        });
    if (!found || !world_.is_leader()) return;
    log::info(fmt::format("the end token behind answers: {}", to_json(*found).dump()));
    if (const auto complaint = found->complaint())
      log::warn(fmt::format("{}\n  fix: {}", *complaint, untrained_end_fix()));
    if (!run_dir.empty())
      files::write_atomic(run_dir / "end_token.json", to_json(*found).dump() + "\n");
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
    bool measured = !worths.empty() && options_.parity != tasks::Parity::Exact &&
                    !measures_in_update() && lag() == 0;
    // The policy that wrote the rollout no longer exists after updates; its values must be in the
    // ledger.
    TESSERA_REQUIRE(!worths.empty() || (place.update == 0 && replayed_.empty()),
                    Format,
                    lacking("what the completions were worth"),
                    kStartOver);
    if (!worths.empty()) {
      TESSERA_REQUIRE(take_over(worths, rows_, scored, made_),
                      Format,
                      lacking("some of what the completions were worth"),
                      kStartOver);
      take_coefficient();
    } else {
      // Models with ranks of their own are computed there while other ranks score.
      std::vector<double> under_reference, values;
      if (reference_ != nullptr) under_reference = own_under_reference();
      if (critic_ != nullptr) values = critic_->own_values(rows_);
      if (rewards_BF_.defined()) {
        scored.rewards_BF = rewards_BF_;
      } else {
        const std::vector<std::int64_t> all = all_numbers();
        const std::vector<std::string> texts = texts_of(all);
        scored.rewards_BF = rewards_->of(answers(all, texts), rows_);
      }
      scored.old_BT = makes_pass() ? output_of_rows(policy_.executor(),
                                                    world_,
                                                    rows_,
                                                    planner::micro_batch_of(plan_),
                                                    "log_probabilities")
                                   : generated_BT;
      measured = makes_pass();
      if (reference_ != nullptr) {
        reference_->share(under_reference, "log-probabilities of the reference");
        scored.reference_BT =
            at::tensor(under_reference, at::kDouble).view(rows_.labels_BT.sizes());
      } else if (task_.has_reference()) {
        scored.reference_BT = under_base();
      }
      if (critic_ != nullptr) {
        critic_->share_values(values);
        scored.values_BT = at::tensor(values, at::kDouble).view(rows_.labels_BT.sizes());
      }
      made_ = advantage_estimators().get(options_.advantage.estimator)(scored, with_coefficient());
    }
    // Without a forward pass the policy is compared with itself.
    const bool compares = options_.parity == tasks::Parity::Exact || needs_old() || lag() > 0 ||
                          (options_.parity == tasks::Parity::Measure && !measures_in_update());
    old_BT_ = compares ? scored.old_BT : at::Tensor();
    generated_BT_ = generated_BT;
    const bool told = measures_in_update() || tells_ratios();
    found_BT_ = told ? at::zeros_like(generated_BT) : at::Tensor();
    reference_BT_ = scored.reference_BT;
    learned_labels_BT_ = rows_.labels_BT.clone();
    for (std::int64_t b = 0; b < size_; ++b) {
      if (!learned(at(b))) learned_labels_BT_[b].fill_(-100);
    }
    if (critic_ != nullptr) critic_->expect(scored.values_BT, made_.returns_BT);
    if (worths.empty()) adapt_coefficient(scored);
    metrics_ = report_of({.completions = completions_,
                          .scored = scored,
                          .generated_BT = generated_BT,
                          .returns_BT = made_.returns_BT,
                          .reward_names = names(),
                          .measured = measured && old_BT_.defined()},
                         options_);
    if (options_.dynamic_rounds > 0) report_rounds();
    if (version_ == 0 && worths.empty() && world_.is_leader()) {
      if (const auto complaint = complaint_of_first_rollout(
              metrics_, prompts_.ends(*plan_.data().tokenizer), *plan_.data().tokenizer))
        log::warn(fmt::format("{}\n  fix: {}", *complaint, untrained_end_fix()));
    }
    if (const auto complaint = complaint_of_dropped(scored, learned_labels_BT_);
        complaint && world_.is_leader())
      log::warn_once(*complaint);
    const std::vector<Alarm> alarms = new_alarms();
    if (worths.empty()) {
      if (options_.on_alarm == tasks::OnAlarm::RaiseKl && !alarms.empty())
        kl_coefficient_ *= kRaise;
      keep_worths(scored);
    }
    if (changes_coefficient()) metrics_.push_back({"kl_coefficient", kl_coefficient_, 1.0});
    if (options_.on_alarm == tasks::OnAlarm::RollBack)
      metrics_.push_back({"roll_backs", static_cast<double>(roll_backs_), 1.0});
    if (readable_ && readable_->wants(version_, updates())) {
      readable_->add(
          version_,
          samples_of(completions_, texts_of(all_numbers()), scored, prompts_, options_.samples),
          names());
    }
    check_parity();
    verified_ = verified_ || lag() == 0;
    tell(alarms);
  }

  /// Sets the coefficient to that of the ledger's rollout, if there is one.
  void take_coefficient() {
    std::vector<double> coefficient = {kept_ ? kept_->kl_coefficient.value_or(0.0) : 0.0};
    engine::share_values(world_, coefficient, "the coefficient of the divergence");
    if (coefficient.front() > 0) kl_coefficient_ = coefficient.front();
  }
  [[nodiscard]] bool changes_coefficient() const {
    return options_.kl.target.has_value() || options_.on_alarm == tasks::OnAlarm::RaiseKl ||
           options_.roll_back.kl_factor > 1;
  }
  /// Takes over how often the run went back to the checkpoint that it begins with, or before it.
  void count_roll_backs(const std::filesystem::path& run_dir, std::int64_t step) {
    std::vector<double> counted = {0.0};
    if (world_.is_leader())
      counted[0] = static_cast<double>(roll_backs_up_to(run_dir, step, roll_backs_));
    engine::share_with_all(world_, counted, "how often the run went back");
    const auto now = static_cast<std::int64_t>(counted[0]);
    kl_coefficient_ *=
        std::pow(options_.roll_back.kl_factor, static_cast<double>(now - roll_backs_));
    roll_backs_ = now;
  }

  [[nodiscard]] tasks::RlOptions with_coefficient() const {
    tasks::RlOptions out = options_;
    out.kl.coefficient = kl_coefficient_;
    return out;
  }
  void adapt_coefficient(const Scored& scored) {
    if (!options_.kl.target || !scored.reference_BT.defined()) return;
    const at::Tensor sums_B =
        at::where(scored.mask_BT, scored.old_BT - scored.reference_BT, at::zeros({}, at::kDouble))
            .sum(1);
    kl_coefficient_ = losses::adapted_kl_coefficient(kl_coefficient_,
                                                     sums_B.mean().item<double>(),
                                                     *options_.kl.target,
                                                     static_cast<double>(size_),
                                                     static_cast<double>(options_.kl.horizon));
  }

  /// The share of the groups that replaced others.
  void report_rounds() {
    double replaced = 0;
    for (const Completion& one : completions_)
      replaced += one.round > 0 ? 1.0 : 0.0;
    const auto groups = static_cast<double>(size_ / options_.samples);
    metrics_.push_back({"replaced_groups", replaced / static_cast<double>(size_), groups});
  }

  /// Returns the log-probabilities of the reference on its ranks, and zeros on the others.
  [[nodiscard]] std::vector<double> own_under_reference() {
    return reference_->compute(
        rows_.labels_BT.numel(), [&](engine::OpenModel& model, comm::World& world) {
          const at::Tensor made_BT = output_of_rows(
              *model.executor, world, rows_, planner::micro_batch_of(plan_), "log_probabilities");
          const auto* const values = made_BT.const_data_ptr<double>();
          return std::vector<double>(values, values + made_BT.numel());
        });
  }
  [[nodiscard]] at::Tensor under_base() {
    const nn::WithoutAdapters base;
    return output_of_rows(
        policy_.executor(), world_, rows_, planner::micro_batch_of(plan_), "log_probabilities");
  }

  /// Returns the alarms that have persisted for some rollouts in a row; each one again after as
  /// many further rollouts if it has raised the coefficient.
  std::vector<Alarm> new_alarms() {
    if (judged_ == version_) return {};  // counted before the checkpoint was saved
    judged_ = version_;
    std::vector<Alarm> out;
    std::map<std::string, int> now;
    first_.add(metrics_);
    for (const Alarm& alarm : alarms_of(metrics_, texts_of(all_numbers()), first_)) {
      int& rollouts = now[alarm.name] = alarms_[alarm.name] + 1;
      if (rollouts != kRolloutsOfAlarm) continue;
      out.push_back(alarm);
      if (options_.on_alarm == tasks::OnAlarm::RaiseKl) rollouts = 0;
    }
    alarms_ = std::move(now);
    return out;
  }
  void tell(const std::vector<Alarm>& alarms) const {
    if (!replayed_.empty()) return;
    for (const Alarm& alarm : alarms) {
      const std::string what = fmt::format("{} (alarm {})", alarm.what, alarm.name);
      TESSERA_REQUIRE(options_.on_alarm != tasks::OnAlarm::Stop, Numeric, what, alarm.fix);
      if (options_.on_alarm == tasks::OnAlarm::RollBack) go_back_for(alarm.name, what, alarm.fix);
      if (!world_.is_leader()) continue;
      const std::string done = options_.on_alarm == tasks::OnAlarm::RaiseKl
                                   ? fmt::format("the coefficient of the divergence is now {}",
                                                 text::number(kl_coefficient_))
                                   : alarm.fix;
      log::warn(fmt::format("after {} updates: {}; {}", version_, what, done));
    }
  }

  /// Ends the training of this engine, on every rank.
  [[noreturn]] void go_back_for(const std::string& name,
                                const std::string& what,
                                const std::string& fix) const {
    const tasks::RlRollBack& how = options_.roll_back;
    TESSERA_REQUIRE(
        roll_backs_ < how.most,
        Numeric,
        fmt::format(
            "{}; the run has gone back {} times, which is rl.roll_back.most", what, how.most),
        fix);
    const std::int64_t first = version_ - (kRolloutsOfAlarm - 1) * updates();
    throw RollBack({.alarm = name,
                    .what = what,
                    .fix = fix,
                    .after = version_,
                    .newest = first - how.rollouts * updates(),
                    .times = roll_backs_ + 1});
  }

  /// Returns whether the log-probabilities of the policy that wrote the rollout are needed besides
  /// those of sampling.
  [[nodiscard]] bool needs_old() const {
    return updates() > 1 || task_.has_reference() || critic_ != nullptr;
  }
  /// Returns whether the log-probabilities of a rollout are computed by a pass of their own.
  [[nodiscard]] bool makes_pass() const {
    if (lag() > 0) return false;  // the policy that wrote it is gone
    if (options_.parity == tasks::Parity::Exact) return !verified_;
    return needs_old() || (options_.parity == tasks::Parity::Measure && !measures_in_update());
  }
  /// Returns whether sampling is compared with the log-probabilities that the update itself
  /// computes. Those of training with dropout are of another model, and those on a device do not
  /// come back.
  [[nodiscard]] bool measures_in_update() const {
    return options_.parity == tasks::Parity::Measure && !needs_old() && !drops_ &&
           world_.transport().device() == Device() && lag() == 0;
  }
  /// Compares what the update found with sampling: adds the ratios of its rows to `metrics`, or,
  /// for one policy, the difference to those of the rollout, and stops beyond the limit.
  void compare_with_update(engine::Metrics& metrics) {
    std::vector<double> found(static_cast<std::size_t>(found_BT_.numel()));
    std::copy_n(found_BT_.const_data_ptr<double>(), found.size(), found.begin());
    engine::share_values(world_, found, "log-probabilities of an update");
    const at::Tensor all_BT = at::tensor(found, at::kDouble).view(found_BT_.sizes());
    const at::Tensor mask_BT = learned_labels_BT_.ge(0);
    if (tells_ratios()) {
      const auto rows = [&](const at::Tensor& of_BT) {
        return of_BT.narrow(0, first_row(update_), planner::global_batch_of(plan_));
      };
      add_ratios(metrics, rows(all_BT), rows(old_BT_), rows(mask_BT));
      found_BT_.zero_();
      return;
    }
    add_parity(metrics_, generated_BT_, all_BT, mask_BT);
    check_parity();
  }
  [[nodiscard]] bool learned(const Completion& one) const {
    return one.ended || options_.truncated == tasks::Truncated::Keep;
  }

  /// Returns the ledger's values of all completions of this rollout, on every rank; empty if there
  /// are none.
  std::vector<Worth> kept_worths() {
    if (!was_judged()) return {};
    std::vector<Worth> out(static_cast<std::size_t>(size_));
    const std::size_t F = task_.rewards().size();
    for (std::int64_t b = 0; b < size_; ++b) {
      const std::size_t tokens = at(b).ids.size();
      std::vector<double> values(packed_size(F, tokens), 0.0);
      if (kept_) pack(kept_->worths.at(b), tokens, values);
      engine::share_values(world_, values, "what completions were worth");
      out[static_cast<std::size_t>(b)] = unpacked(values, F, tokens);
    }
    return out;
  }

  void keep_worths(const Scored& scored) {
    if (!ledger_) return;
    const std::vector<std::string> names = this->names();
    std::vector<json::Value> lines;
    for (std::int64_t b = 0; b < size_; ++b) {
      Worth worth = worth_of(scored, made_, b);
      worth.learned = learned(at(b));
      if (changes_coefficient()) worth.kl_coefficient = kl_coefficient_;
      lines.push_back(to_json(version_, b, worth, names));
    }
    ledger_->append(lines);
  }

  void check_parity() const {
    const bool exact = options_.parity == tasks::Parity::Exact;
    const double limit = exact ? 0.0 : options_.parity_limit;
    const engine::Metric* const largest = engine::find_metric(metrics_, "parity_max");
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
  void check_first_update(const engine::Metrics& metrics) const {
    if (options_.parity != tasks::Parity::Exact || update_ != 0 || lag() > 0) return;
    const engine::Metric* const moved = engine::find_metric(metrics, "moved");
    if (moved == nullptr || moved->mean == 0.0) return;
    throw Error(Error::Kind::Numeric,
                fmt::format("rl.parity is exact, and the first update after a rollout finds "
                            "log-probabilities that differ by {} on average from sampling's",
                            moved->mean),
                "set the model's and the adapter's dropout to 0, or rl.parity to measure");
  }

  static constexpr double kRaise = 2.0;        ///< what an alarm multiplies the coefficient by
  double kl_coefficient_;                      ///< of the next rollout
  bool restored_ = false;                      ///< whether a checkpoint had the coefficient
  bool drops_;                                 ///< whether a forward of training is random
  std::int64_t judged_ = -1;                   ///< version of the last rollout in alarms_
  std::optional<ops::BatchInvariance> alone_;  ///< if rl.parity is exact
  bool verified_ = false;                      ///< whether a rollout was compared
  std::unique_ptr<ReadModel> reference_;
  std::unique_ptr<Critic> critic_;
  std::optional<PretrainingTexts> texts_;
  // The current rollout.
  std::int64_t update_ = 0;
  at::Tensor learned_labels_BT_, old_BT_, reference_BT_;
  Advantages made_;
  /// Log-probabilities of sampling, and, if updates compare, those that this rank's micro-batches
  /// have written, 0 elsewhere.
  at::Tensor generated_BT_, found_BT_;
  engine::Metrics metrics_;
  std::map<std::string, int> alarms_;  ///< and for how many rollouts in a row
  FirstRollouts first_;
  std::optional<ReadableRollouts> readable_;  ///< on the leader
};

}  // namespace

std::unique_ptr<engine::Experience> make_rollouts(const planner::PlanWithData& plan,
                                                  comm::World& world,
                                                  engine::TrainState& policy,
                                                  const data::Dataset& data,
                                                  Generators* generators) {
  const tasks::Rl* const task = tasks::as_rl(plan.data().task.get());
  TESSERA_ASSERT(task != nullptr);
  const auto* const prompts = dynamic_cast<const tasks::Prompts*>(&data);
  TESSERA_REQUIRE(prompts != nullptr,
                  Config,
                  "the task rl was given other data than prompts",
                  "let the task open data.train");
  return std::make_unique<Rollouts>(plan, *task, world, policy, *prompts, generators);
}

}  // namespace tessera::rlhf
