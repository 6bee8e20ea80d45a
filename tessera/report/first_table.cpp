// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/first_table.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/data/sample_order.h"
#include "tessera/memory/tiers/measure.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/course.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/report/stage_lines.h"

namespace tessera::report {
namespace {

constexpr std::size_t kMostLines = 25;

std::string bytes(std::int64_t count) {
  return text::bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0)));
}

std::string plural(std::int64_t count, const std::string& one) {
  return text::with_commas(count) + " " + one + (count == 1 ? "" : "s");
}

std::string model_line(const planner::Plan& plan, const TableFacts& facts) {
  const models::Resolved& m = plan.model().resolved;
  const auto& options = plan.model().options;
  const std::string name =
      options->from ? " from " + *options->from : (options->preset ? " " + *options->preset : "");
  if (m.description.find("family") == nullptr) {
    return fmt::format("the program's own: {} blocks, positions {}",
                       m.model.blocks.size(),
                       plan.data().sequence_length);
  }
  return fmt::format("{}{}: {} layers x {} x {} heads, vocabulary {}, positions {}{}",
                     options.family(),
                     name,
                     m.num_layers,
                     m.hidden_size,
                     m.num_heads,
                     text::with_commas(m.vocab_size),
                     m.max_positions,
                     plan.model().weights || facts.resume_step > 0 ? "" : "; new random weights");
}

bool reads_images(const planner::Plan& plan) {
  return plan.model().resolved.trunk.output.modality == models::Modality::Images;
}

/// The unit of the samples of the data, which TableFacts::train_tokens counts.
const char* unit_of(const planner::Plan& plan) {
  return reads_images(plan) ? "images" : "tokens";
}

std::string batch_line(const planner::Plan& plan) {
  const std::string grows =
      plan.recipe().ramp ? "; rampup " + plan.recipe().written_ramp.dump() : std::string();
  const bool images = reads_images(plan);
  const std::string tokens = images ? std::string()
                                    : fmt::format("; {} tokens an update",
                                                  text::with_commas(plan.recipe().global_batch *
                                                                    plan.data().sequence_length));
  return fmt::format("{} {} = micro {} x accumulation {} x ranks {}{}{}",
                     plan.recipe().global_batch,
                     images ? "images" : "sequences",
                     plan.layout().micro_batch,
                     plan.layout().accumulation,
                     plan.layout().data_ranks,
                     tokens,
                     grows);
}

// ", expert parallel 4 (with context)".
std::string expert_text(const parallel::Layout& layout) {
  const mesh::ExpertFold fold = layout.expert_fold();
  const mesh::Mesh mesh = layout.mesh();
  const int divided = mesh.size(fold.ep), split = mesh.size(fold.etp);
  std::string out;
  if (divided > 1) {
    const bool context = layout.experts_over_context, tensor = layout.experts_over_tensor;
    const char* const with = context && tensor ? " (with context and tensor)"
                             : context         ? " (with context)"
                             : tensor          ? " (with tensor)"
                                               : "";
    out = fmt::format(", expert parallel {}{}", divided, with);
  }
  return split > 1 ? out + fmt::format(", experts split over {}", split) : out;
}

std::string layout_line(const planner::Plan& plan) {
  const parallel::Layout& layout = plan.layout();
  const std::string groups = layout.zero_stage == 3 && layout.shard_ranks < layout.data_ranks
                                 ? fmt::format(" in groups of {}", layout.shard_ranks)
                                 : "";
  const std::string tensor =
      layout.grid.size() == 1
          ? ""
          : fmt::format(", tensor parallel {} ({}{})",
                        layout.grid.size(),
                        config::name_of(parallel::kTensorLayouts, layout.tensor),
                        layout.sequence ? ", sequence" : "");
  const std::string context =
      layout.context == 1
          ? ""
          : fmt::format(", context parallel {} ({})",
                        layout.context,
                        config::name_of(parallel::kContextModes, layout.context_mode));
  return fmt::format("{} x {}, data parallel {}{}{}{}, ZeRO stage {}{}, {}",
                     plural(layout.ranks(), "rank"),
                     plural(layout.threads, "thread"),
                     layout.data_ranks,
                     expert_text(layout),
                     tensor,
                     context,
                     layout.zero_stage,
                     groups,
                     planner::precision_text(layout, plan.recipe()));
}

std::string sources_text(const std::vector<std::string>& sources) {
  if (sources.empty()) return "none";
  const std::string more =
      sources.size() > 1 ? fmt::format(" and {} more", sources.size() - 1) : "";
  return sources.front() + more;
}

std::string data_line(const planner::Plan& plan, const TableFacts& facts) {
  if (reads_images(plan)) {
    return fmt::format("{}: {} {}",
                       sources_text(plan.data().options.train),
                       text::with_commas(facts.train_tokens),
                       unit_of(plan));
  }
  return fmt::format("{}: {} tokens, {} of {} tokens, {} tokenizer",
                     sources_text(plan.data().options.train),
                     text::with_commas(facts.train_tokens),
                     plural(facts.train_samples, "sample"),
                     plan.data().sequence_length,
                     plan.data().tokenizer->name());
}

/// The number of samples of each class, and of classes that are not listed.
std::string classes_line(const TableFacts& facts) {
  constexpr std::size_t kMost = 12;
  std::vector<std::string> parts;
  for (const auto& [name, count] : facts.classes) {
    if (parts.size() == kMost) {
      parts.push_back(fmt::format("{} more classes", facts.classes.size() - kMost));
      break;
    }
    // Names are from outside and may have any characters.
    parts.push_back(
        fmt::format("{} {}", json::Value::string(name).dump(), text::with_commas(count)));
  }
  return text::join(parts, ", ");
}

/// Returns what ends a training early.
std::string patience_text(const tasks::EvalOptions& eval) {
  std::vector<std::string> limits;
  if (eval.patience) limits.push_back(plural(*eval.patience, "evaluation"));
  if (eval.patience_steps) limits.push_back(plural(*eval.patience_steps, "step"));
  if (limits.empty()) return "";
  return fmt::format(
      "; stops after {} without a gain of {}", text::join(limits, " or "), eval.rule().metric);
}

std::string validation_line(const planner::Plan& plan, const TableFacts& facts) {
  if (facts.validation_tokens == 0) return "none";
  const data::DataOptions& data = plan.data().options;
  const std::string source = data.folds ? fmt::format("fold {} of {}", data.fold, *data.folds)
                             : data.validation.empty()
                                 ? fmt::format("{} of the data, held out", data.validation_fraction)
                                 : sources_text(data.validation);
  const tasks::EvalOptions& eval = plan.run().eval;
  const std::string when = eval.when().any() ? eval.when().text() : "never read";
  return fmt::format("{}: {} {}, {}{}",
                     source,
                     text::with_commas(facts.validation_tokens),
                     unit_of(plan),
                     when,
                     patience_text(eval));
}

// The number of samples of all steps. An epoch's last batch is smaller unless it is dropped.
std::int64_t samples_of_steps(const planner::PlanWithData& plan, std::int64_t in_epoch) {
  if (plan.data().options.drop_last || in_epoch <= 0) {
    return plan.recipe().ramp ? plan.recipe().ramp->samples_before(plan.course().max_steps + 1)
                              : plan.course().max_steps * plan.recipe().global_batch;
  }
  const auto size_at = batch_sizes(plan.recipe());
  const data::BatchPlan batches(in_epoch, plan.recipe().global_batch, /*drop_last=*/false, size_at);
  std::int64_t samples = 0, left = plan.course().max_steps;
  const auto grows = [&] { return size_at && size_at(samples) != plan.recipe().global_batch; };
  for (; left > 0 && (samples % in_epoch != 0 || grows()); --left)
    samples = batches.at(samples).consumed_after;
  const std::int64_t steps = batches.steps_per_epoch();
  return samples + left / steps * in_epoch + left % steps * plan.recipe().global_batch;
}

}  // namespace

double passes_over_data(const planner::PlanWithData& plan, const TableFacts& facts) {
  if (facts.train_samples <= 0) return 0.0;
  return static_cast<double>(samples_of_steps(plan, facts.train_samples)) /
         static_cast<double>(facts.train_samples);
}

std::string warning_of_passes(const planner::PlanWithData& plan, const TableFacts& facts) {
  constexpr double kMost = 50;
  const double passes = passes_over_data(plan, facts);
  if (passes <= kMost) return "";
  return fmt::format(
      "the training reads its data {} times: a model learns such data by heart\n  fix: add data, "
      "or "
      "lower trainer.max_steps ({} steps are {:.0f} passes)",
      text::with_commas(static_cast<std::int64_t>(passes)),
      text::with_commas(
          static_cast<std::int64_t>(static_cast<double>(plan.course().max_steps) * kMost / passes)),
      kMost);
}

namespace {

std::string length_line(const planner::PlanWithData& plan, const TableFacts& facts) {
  const std::int64_t steps_left =
      std::max<std::int64_t>(plan.course().max_steps - facts.resume_step, 0);
  const std::string left = facts.resume_step > 0
                               ? fmt::format(" for the remaining {}", plural(steps_left, "step"))
                               : std::string();
  if (!facts.tokens_are_known) {
    std::string out = fmt::format("{}, {:.2f} passes over the data",
                                  plural(plan.course().max_steps, "step"),
                                  passes_over_data(plan, facts));
    if (facts.step_s > 0) {
      out += fmt::format("; about {}{} at {} a step, as measured here",
                         text::duration(facts.step_s * static_cast<double>(steps_left)),
                         left,
                         text::duration(facts.step_s));
    }
    return out;
  }
  const auto samples = static_cast<double>(samples_of_steps(plan, facts.train_samples));
  const double positions = samples * static_cast<double>(plan.data().sequence_length);
  // Samples that are padded have fewer tokens than positions.
  const double in_data = facts.train_samples > 0
                             ? samples * static_cast<double>(facts.train_tokens) /
                                   static_cast<double>(facts.train_samples)
                             : 0.0;
  const double tokens = in_data > 0 ? std::min(positions, in_data) : positions;
  std::string out = fmt::format("{}, {} {}, {:.2f} passes over the data",
                                plural(plan.course().max_steps, "step"),
                                text::count(tokens),
                                unit_of(plan),
                                passes_over_data(plan, facts));
  if (facts.tokens_per_s > 0) {
    const double share = static_cast<double>(steps_left) /
                         static_cast<double>(std::max<std::int64_t>(plan.course().max_steps, 1));
    out +=
        fmt::format("; about {}{} at {} {}/s, {}",
                    text::duration((facts.speed_is_estimated ? positions : tokens) * share /
                                   facts.tokens_per_s),
                    left,
                    text::count(facts.tokens_per_s),
                    unit_of(plan),
                    facts.speed_is_estimated ? "half of this machine's peak" : "as measured here");
  }
  return out;
}

std::string optimizer_line(const planner::Plan& plan) {
  const json::Value* optimizer = plan.resolved().find("optimizer");
  const json::Value* params = optimizer == nullptr ? nullptr : optimizer->find("params");
  std::string out = plan.recipe().optimizer.type;
  if (params != nullptr && params->is_object()) {
    for (const auto& [key, value] : params->members())
      out += " " + key + " " + value.dump();
  }
  out += ", schedule " +
         (plan.recipe().scheduler.type.empty() ? "constant" : plan.recipe().scheduler.type);
  if (plan.recipe().clip_norm > 0) out += ", clipping " + text::number(plan.recipe().clip_norm);
  return out;
}

std::string when_saved(const checkpoint::Options& options) {
  std::vector<std::string> when;
  if (options.when().any()) when.push_back(options.when().text());
  if (const auto interval = options.interval_s())
    when.push_back(fmt::format("every {} minutes", text::number(*interval / 60)));
  if (options.keeps_best()) when.emplace_back("at the best evaluation");
  if (when.empty()) return options.final ? "at the end only" : "never";
  return text::join(when, " and ");
}

std::string checkpoint_line(const planner::Plan& plan, const TableFacts& facts) {
  const checkpoint::Options& options = plan.run().checkpoint;
  const std::int64_t one = planner::checkpoint_bytes(plan),
                     kept = options.keep + (options.keeps_best() ? 1 : 0);
  const bool tight = static_cast<std::uint64_t>(one * kept) > facts.free_disk_bytes;
  return fmt::format("{}, {} x {} kept = {}; {} free on the disk{}",
                     when_saved(options),
                     bytes(one),
                     kept,
                     bytes(one * kept),
                     text::bytes(facts.free_disk_bytes),
                     tight ? " (NOT ENOUGH: lower checkpoint.keep or choose another run.dir)" : "");
}

std::string memory_line(const planner::Plan& plan,
                        const planner::MemoryEstimate& estimate,
                        const TableFacts& facts) {
  const std::int64_t need = estimate.total();
  return fmt::format("{}{} a rank x {} = {} of {} free",
                     estimate.unknown.empty() ? "" : "at least ",
                     bytes(need),
                     plan.ranks(),
                     bytes(need * plan.ranks()),
                     text::bytes(facts.available_memory_bytes));
}

std::string memory_split_line(const planner::Plan& plan, const planner::MemoryEstimate& estimate) {
  const std::int64_t saving = planner::saving_bytes(plan);
  return estimate.text() +
         (saving > 0 ? fmt::format("; and {} while it saves", bytes(saving)) : "");
}

// The folder of values that rest outside of memory, and their bytes.
std::string offload_line(const planner::Plan& plan,
                         const char* what,
                         const std::string& folder,
                         std::int64_t of_rank,
                         int buffers,
                         const char* unit) {
  return fmt::format("{} rest in {}: {} a rank x {} = {}; {} {}{} in memory",
                     what,
                     folder,
                     bytes(of_rank),
                     plan.ranks(),
                     bytes(of_rank * plan.ranks()),
                     buffers,
                     unit,
                     buffers == 1 ? "" : "s");
}

// The seconds of a step that the disk alone needs, as it was measured last.
std::string disk_seconds(const planner::Plan& plan, const planner::OffloadBytes& disk) {
  std::string folder = disk.states_folder;
  if (folder.empty()) folder = disk.weights_folder;
  if (folder.empty()) folder = disk.activations_folder;
  const std::optional<memory::TierSpeed> speed = memory::remembered_speed(folder);
  if (!speed) return "tessera bench io measures the disk";
  const std::int64_t most = std::max(disk.read, disk.written) * plan.ranks();
  return fmt::format("the disk alone needs {:.2g} s, at {:.2f} GB/s (tessera bench io)",
                     speed->update_s(most),
                     speed->read_beside_write / 1e9);
}

std::vector<std::string> offload_lines(const planner::Plan& plan) {
  std::vector<std::string> out;
  const planner::OffloadBytes disk = planner::offload_bytes(plan);
  if (disk.states > 0) {
    const parallel::StateOffload& offload = *plan.layout().offload;
    out.push_back(offload_line(
        plan, "masters and states", offload.folder, disk.states, offload.buffers, "group"));
  }
  if (disk.gradients > 0) {
    out.push_back(offload_line(
        plan, "gradients", disk.states_folder, disk.gradients, disk.gradient_buffers, "part"));
  }
  if (disk.weights > 0) {
    const parallel::WeightOffload& offload = *plan.layout().weight_offload;
    out.push_back(
        offload_line(plan, "weights", offload.folder, disk.weights, offload.buffers, "part"));
  }
  if (disk.activations > 0) {
    const parallel::ActivationOffload& offload = *plan.layout().activation_offload;
    out.push_back(offload_line(
        plan, "activations", offload.folder, disk.activations, offload.buffers, "tensor"));
  }
  const planner::HostBytes host = planner::host_bytes(plan);
  for (const auto& [what, of_rank] : {std::pair("masters and states", host.states),
                                      std::pair("weights", host.weights),
                                      std::pair("activations", host.activations)}) {
    if (of_rank == 0) continue;
    out.push_back(fmt::format("{} in the host's memory: {} a rank x {} = {}",
                              what,
                              bytes(of_rank),
                              plan.ranks(),
                              bytes(of_rank * plan.ranks())));
  }
  if (disk.total() > 0) {
    out.push_back(fmt::format("a step reads {} and writes {} on each rank; {}",
                              bytes(disk.read),
                              bytes(disk.written),
                              disk_seconds(plan, disk)));
  }
  return out;
}

// Long lists end with a line that says how many are missing.
void append_capped(std::vector<std::string>& lines,
                   const std::vector<std::string>& more,
                   const std::string& what) {
  for (std::size_t i = 0; i < more.size(); ++i) {
    const bool last_free = lines.size() + 1 >= kMostLines;
    if (last_free && i + 1 < more.size()) {
      lines.push_back(fmt::format("  {} more {}", more.size() - i, what));
      return;
    }
    if (lines.size() >= kMostLines) return;
    lines.push_back("  " + more[i]);
  }
}

// Long pipelines are abbreviated, because the table must fit on one screen.
void append_stages(std::vector<std::string>& lines, const planner::Plan& plan) {
  constexpr std::size_t kMost = 8;
  const parallel::StageLayout& layout = plan.layout().stages;
  if (layout.stages == 1) return;
  lines.push_back(
      fmt::format("{:<11} {} stages, {}, {} micro-batches; a stage waits {:.0f}% of the "
                  "time if all take equally long",
                  "pipeline",
                  layout.stages,
                  plan.layout().schedule,
                  std::max<std::int64_t>(plan.layout().accumulation, 1),
                  100 * report::planned_waits(plan.layout())));
  const std::vector<std::string> stages =
      report::stage_lines(plan.layout(), plan.model().resolved.model);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (s == kMost - 1 && stages.size() > kMost) {
      lines.push_back(fmt::format("  stages {} to {} like these", s, stages.size() - 1));
      return;
    }
    lines.push_back("  stage " + stages[s]);
  }
}

// The placement of the model on the mesh; shorter if every rank holds the whole model.
void append_mesh(std::vector<std::string>& lines,
                 const planner::Plan& plan,
                 const TableFacts& facts) {
  constexpr std::size_t kBelow = 7;  // the rows below, without the notes
  constexpr std::size_t kMost = 10, kMostOfWhole = 5, kLeast = 3;
  if (plan.ranks() == 1) return;
  const std::size_t most = plan.ranks() == plan.layout().data_ranks ? kMostOfWhole : kMost;
  const std::size_t taken = lines.size() + kBelow;
  const std::size_t left = kMostLines > taken ? kMostLines - taken : 0;
  if (left < kLeast) return;
  const std::vector<std::string> mesh = report::mesh_lines(
      plan.layout(), plan.model().resolved.model, facts.host, std::min(left, most));
  for (std::size_t i = 0; i < mesh.size(); ++i)
    lines.push_back(fmt::format("{:<11} {}", i == 0 ? "mesh" : "", mesh[i]));
}

}  // namespace

std::vector<std::string> first_table(const planner::PlanWithData& plan, const TableFacts& facts) {
  std::vector<std::string> lines;
  const auto row = [&](const char* name, const std::string& what) {
    lines.push_back(fmt::format("{:<11} {}", name, what));
  };
  row("model", model_line(plan, facts));
  const models::Resolved& resolved = plan.model().resolved;
  std::string parameters = text::with_commas(resolved.num_parameters);
  if (resolved.inactive_parameters > 0)
    parameters +=
        fmt::format(", of which a token uses {}", text::with_commas(resolved.active_parameters()));
  row("parameters", parameters);
  row("data", data_line(plan, facts));
  if (!facts.classes.empty()) row("classes", classes_line(facts));
  row("validation", validation_line(plan, facts));
  row("batch", batch_line(plan));
  row("length", length_line(plan, facts));
  row("optimizer", optimizer_line(plan));
  row("layout", layout_line(plan));
  append_stages(lines, plan);
  append_mesh(lines, plan, facts);
  const planner::MemoryEstimate memory =
      facts.memory ? *facts.memory : planner::estimate_memory(plan);
  row("memory", memory_line(plan, memory, facts));
  row("", memory_split_line(plan, memory));
  for (const std::string& line : offload_lines(plan))
    row("offload", line);
  row("run", facts.run_dir);
  row("checkpoints", checkpoint_line(plan, facts));
  row("seed", std::to_string(plan.recipe().seed));
  row("start",
      facts.resume_from.empty()
          ? "from the beginning"
          : fmt::format("from step {} of {}", facts.resume_step, facts.resume_from));
  append_capped(lines, facts.changes, "changes");
  append_capped(lines,
                plan.notes(),
                facts.more_notes.empty() ? "notes" : fmt::format("notes {}", facts.more_notes));
  return lines;
}

}  // namespace tessera::report
