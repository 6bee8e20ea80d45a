// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/outlook.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/recipe.h"
#include "tessera/tune/space.h"

namespace tessera::tune {
namespace {

std::string in_bytes(double count) {
  return text::bytes(static_cast<std::uint64_t>(std::max(count, 0.0)));
}

/// A number of hours or a price: two digits after the point below 100.
std::string in_tens(double number) {
  return number < 100 ? fmt::format("{:.2f}", number)
                      : text::with_commas(static_cast<std::int64_t>(std::lround(number)));
}

std::string in_seconds(double seconds) {
  if (seconds >= 100) return text::duration(seconds);
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return fmt::format("{:.1f} ms", 1e3 * seconds);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

bool fits(const planner::MemoryEstimate& memory, const predict::DescribedMachine& machine) {
  return static_cast<double>(memory.total()) <= planner::kUsableMemory * machine.memory_bytes;
}

int hosts_of(int ranks, const predict::DescribedMachine& machine) {
  const int each = machine.rates.host_ranks;
  return each == 0 ? 1 : (ranks + each - 1) / each;
}

// The name of a part of the machine's rates in a sentence.
std::string rate_text(const Rate& rate) {
  return fmt::format("{:.4g} GB/s", rate.bytes_per_s / 1e9);
}

/// One changed key, and what it would bring.
struct Change {
  std::string text;
  double seconds = 0;
  std::int64_t bytes = 0;
  bool fits = false;
};

std::vector<Choice> neighbours(const Choice& own) {
  std::vector<Choice> out;
  const auto add = [&](const Choice& choice) {
    const std::int64_t model =
        static_cast<std::int64_t>(choice.tensor) * choice.context * choice.pipeline;
    if (choice.micro < 1 || choice.accumulation < 1 || model < 1 || own.ranks % model != 0) return;
    if (!(choice == own)) out.push_back(choice);
  };
  // The batch of a rank after `data` ranks became `now`.
  const auto rebatched = [&](Choice choice) {
    const std::int64_t batch = own.micro * own.accumulation * own.data();
    if (batch % choice.data() != 0) return;
    const std::int64_t each = batch / choice.data();
    choice.micro = std::min(choice.micro, each);
    while (choice.micro > 1 && each % choice.micro != 0)
      --choice.micro;
    choice.accumulation = each / choice.micro;
    add(choice);
  };
  Choice one = own;
  if (own.accumulation % 2 == 0) {
    one.micro *= 2;
    one.accumulation /= 2;
    add(one);
  }
  one = own;
  if (own.micro % 2 == 0) {
    one.micro /= 2;
    one.accumulation *= 2;
    add(one);
  }
  for (const Recompute kind : {Recompute::None, Recompute::Selective, Recompute::Full}) {
    one = own;
    one.recompute = kind;
    add(one);
  }
  for (const int stage : {0, 1, 2, 3}) {
    one = own;
    one.zero = stage;
    if (own.data() > 1) add(one);
  }
  for (const auto& [member, size] :
       {std::pair(&Choice::tensor, own.tensor), std::pair(&Choice::pipeline, own.pipeline)}) {
    for (const int other : {size * 2, size / 2}) {
      one = own;
      one.*member = other;
      if (other < 1 || own.ranks % (one.tensor * one.context * one.pipeline) != 0) continue;
      if (one.tensor == 1) one.sequence = false;
      if (one.pipeline == 1) {
        one.schedule = "1f1b";
        one.chunks = 1;
      }
      rebatched(one);
    }
  }
  if (own.tensor > 1 && own.mode == "1d") {
    one = own;
    one.sequence = !own.sequence;
    add(one);
  }
  if (own.pipeline > 1) {
    for (const auto& [schedule, chunks] : {std::pair("1f1b", 1),
                                           std::pair("interleaved", 2),
                                           std::pair("zb-h1", 1),
                                           std::pair("zb-v", 2)}) {
      one = own;
      one.schedule = schedule;
      one.chunks = chunks;
      add(one);
    }
  }
  return out;
}

std::vector<Change> changes_of(const json::Value& source,
                               const planner::Plan& plan,
                               const predict::DescribedMachine& machine) {
  std::vector<Change> out;
  Space space(source, plan.ranks(), "plan", machine);
  for (const Choice& choice : neighbours(space.own())) {
    try {
      const planner::Plan other = space.checked_plan(choice);
      const planner::MemoryEstimate memory = planner::estimate_memory(other);
      out.push_back({text::join(differences(space.own(), choice), ", "),
                     predict::predict_step(other, machine, space.cache()).seconds,
                     memory.total(),
                     fits(memory, machine)});
    } catch (const Error&) {
      continue;  // a change that is refused does not become advice
    }
  }
  std::ranges::stable_sort(out, {}, &Change::seconds);
  return out;
}

}  // namespace

std::vector<std::pair<std::string, double>> parts_of(const predict::StepTime& time) {
  return {{"products of matrices", time.products},
          {"attention", time.attention},
          {"norms, activations, losses", time.memory},
          {"transfers of layers in a host", time.layers_in_host},
          {"transfers of layers between hosts", time.layers_between},
          {"waits for weights", time.weights},
          {"waits for other stages", time.bubble},
          {"messages between stages", time.messages},
          {"waits for gradients", time.gradients},
          {"update", time.update - time.disk},
          {"update: the disk", time.disk},
          {"waits for updated weights", time.updated},
          {"other times of a step", time.overhead}};
}

Outlook outlook_of(const planner::Plan& plan,
                   const predict::DescribedMachine& machine,
                   std::optional<double> tokens) {
  Outlook out;
  out.time = predict::predict_step(plan, machine);
  out.memory = planner::estimate_memory(plan);
  out.fits = fits(out.memory, machine);
  const auto of_step = static_cast<double>(out.time.tokens);
  const std::optional<std::int64_t> steps = plan.recipe().max_steps;
  if (tokens)
    out.bill = predict::bill_of(
        out.time, std::ceil(*tokens / of_step), plan.ranks(), machine.price_per_hour);
  else if (steps)
    out.bill = predict::bill_of(
        out.time, static_cast<double>(*steps), plan.ranks(), machine.price_per_hour);
  if (!out.fits) {
    out.smaller = planner::changes_that_fit(
        plan, static_cast<std::uint64_t>(machine.memory_bytes * plan.ranks()));
    out.ladder = planner::offload_ladder(
        plan, static_cast<std::uint64_t>(machine.memory_bytes * plan.ranks()), "/mnt/nvme");
    // A machine without a disk in its file has none that is known.
    if (!machine.rates.tiers.contains("disk"))
      std::erase_if(out.ladder, [](const auto& rung) { return rung.disk.total() > 0; });
  }
  return out;
}

std::vector<std::string> outlook_lines(const Outlook& outlook,
                                       const planner::Plan& plan,
                                       const predict::DescribedMachine& machine) {
  const predict::StepTime& time = outlook.time;
  const int ranks = plan.ranks(), hosts = hosts_of(ranks, machine);
  std::vector<std::string> out;
  const auto line = [&](const char* name, const std::string& text) {
    out.push_back(fmt::format("{:<11} {}", name, text));
  };
  line("machine",
       fmt::format("{}, {} {} on {} {}{}",
                   machine.title.empty() ? machine.name : machine.title,
                   ranks,
                   ranks == 1 ? "rank" : "ranks",
                   hosts,
                   hosts == 1 ? "host" : "hosts",
                   hosts > 1 ? fmt::format(", {} a rank between them",
                                           rate_text(machine.rates.between_hosts))
                             : ""));
  Choice choice = choice_of(plan);
  if (machine.cores == 0) choice.threads = 0;
  line("layout", text_of(choice));
  line("memory",
       fmt::format("{} of {} a rank{}: {}",
                   in_bytes(static_cast<double>(outlook.memory.total())),
                   in_bytes(machine.memory_bytes),
                   outlook.fits ? "" : ", which does not fit",
                   outlook.memory.text()));
  if (outlook.memory.on_host > 0) {
    line("host",
         fmt::format("{} a rank of its host's memory, whose size the machine's file does not say; "
                     "the step below leaves out the update there and its copies",
                     in_bytes(static_cast<double>(outlook.memory.on_host))));
  }
  for (const planner::OffloadRung& rung : outlook.ladder)
    line("", (rung.fits ? "then fits with: " : "not yet with: ") + rung.text());
  for (const std::string& change : outlook.smaller)
    line("", "fits with: " + change);
  line("step",
       fmt::format("{} ({} to {}), {} tokens/s",
                   in_seconds(time.seconds),
                   in_seconds(time.low),
                   in_seconds(time.high),
                   text::with_commas(static_cast<std::int64_t>(time.tokens_per_s()))));
  if (time.mfu > 0)
    line("efficiency",
         fmt::format("MFU {}, of all FLOPs that run {}", percent(time.mfu), percent(time.hfu)));
  std::string parts;
  for (const auto& [name, seconds] : parts_of(time)) {
    if (seconds >= 0.005 * time.seconds)
      parts +=
          fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, percent(seconds / time.seconds));
  }
  line("time", parts);
  for (const auto& [name, moved] : time.traffic) {
    line("traffic",
         fmt::format("{}: a rank sends {} in its host and {} to other hosts in a step",
                     name,
                     in_bytes(moved.bytes_in_host),
                     in_bytes(moved.bytes_between)));
  }
  if (outlook.bill) {
    const predict::Bill& bill = *outlook.bill;
    line("training",
         fmt::format("{} steps, {} tokens: {}, {} rank hours{}",
                     text::with_commas(static_cast<std::int64_t>(bill.steps)),
                     text::count(bill.tokens),
                     bill.days < 1 ? text::duration(86400 * bill.days)
                                   : fmt::format("{:.2f} days", bill.days),
                     in_tens(bill.rank_hours),
                     bill.price > 0 ? ", price " + in_tens(bill.price) : ""));
  }
  return out;
}

std::vector<std::string> why_lines(const Outlook& outlook,
                                   const json::Value& source,
                                   const planner::Plan& plan,
                                   const predict::DescribedMachine& machine) {
  const predict::StepTime& time = outlook.time;
  std::vector<std::string> out = {"", "where the time of a step goes"};
  for (const auto& [name, seconds] : parts_of(time)) {
    if (seconds > 0)
      out.push_back(fmt::format(
          "  {:<34} {:>10} {:>7}", name, in_seconds(seconds), percent(seconds / time.seconds)));
  }
  out.emplace_back("what a change would bring");
  std::size_t shown = 0;
  for (const Change& change : changes_of(source, plan, machine)) {
    constexpr std::size_t kMost = 8;
    if (++shown > kMost) break;
    const double gain = time.seconds / change.seconds - 1;
    out.push_back(fmt::format("  {:+6.1f} % speed, {:>10} a rank{}: {}",
                              100 * gain,
                              in_bytes(static_cast<double>(change.bytes)),
                              change.fits ? "" : " (does not fit)",
                              change.text));
  }
  if (shown == 0) out.emplace_back("  no change of one key is possible");
  return out;
}

json::Value outlook_json(const Outlook& outlook,
                         const planner::Plan& plan,
                         const predict::DescribedMachine& machine) {
  const predict::StepTime& time = outlook.time;
  const auto number = [](double value) { return json::Value::number(value); };
  json::Value out;
  out["machine"] = json::Value::string(machine.name);
  out["ranks"] = json::Value::integer(plan.ranks());
  out["hosts"] = json::Value::integer(hosts_of(plan.ranks(), machine));
  out["layout"] = to_json(choice_of(plan));
  out["memory_bytes"] = json::Value::integer(outlook.memory.total());
  for (const auto& [name, bytes] : {std::pair("parameters", outlook.memory.parameters),
                                    std::pair("gradients", outlook.memory.gradients),
                                    std::pair("optimizer", outlook.memory.optimizer),
                                    std::pair("activations", outlook.memory.activations),
                                    std::pair("messages", outlook.memory.messages),
                                    std::pair("other", outlook.memory.other),
                                    std::pair("copies", outlook.memory.copies),
                                    std::pair("shared", -outlook.memory.shared)})
    out["memory_parts_bytes"][name] = json::Value::integer(bytes);
  out["host_memory_bytes"] = json::Value::integer(outlook.memory.on_host);
  out["fits"] = json::Value::boolean(outlook.fits);
  out["step_s"] = number(time.seconds);
  out["step_low_s"] = number(time.low);
  out["step_high_s"] = number(time.high);
  out["tokens_per_step"] = json::Value::integer(time.tokens);
  out["tokens_per_s"] = number(time.tokens_per_s());
  out["model_flops"] = number(time.model_flops);
  out["mfu"] = number(time.mfu);
  out["hfu"] = number(time.hfu);
  for (const auto& [name, seconds] : parts_of(time))
    out["parts_s"][name] = number(seconds);
  for (const auto& [name, moved] : time.traffic) {
    out["traffic"][name]["in_host_bytes"] = number(moved.bytes_in_host);
    out["traffic"][name]["between_hosts_bytes"] = number(moved.bytes_between);
  }
  if (outlook.bill) {
    out["steps"] = number(outlook.bill->steps);
    out["tokens"] = number(outlook.bill->tokens);
    out["days"] = number(outlook.bill->days);
    out["rank_hours"] = number(outlook.bill->rank_hours);
    if (outlook.bill->price > 0) out["price"] = number(outlook.bill->price);
  }
  return out;
}

}  // namespace tessera::tune
