// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/flops_report.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::report {
namespace {

double share(double part, double whole) {
  return whole > 0 ? 100.0 * part / whole : 0.0;
}

std::string rate(double flops, double seconds) {
  return seconds > 0 ? text::count(flops / seconds) + "FLOPS" : "none";
}

std::string ms(double seconds) {
  return fmt::format("{:.3f} ms", 1e3 * seconds);
}

BlockWork total_of(const std::vector<BlockWork>& blocks) {
  BlockWork out;
  for (const BlockWork& block : blocks) {
    out.parameters += block.parameters;
    out.forward.add(block.forward);
    out.backward.add(block.backward);
  }
  return out;
}

std::string summary(const StepFacts& facts, const BlockWork& all) {
  const double flops = all.forward.flops + all.backward.flops;
  const auto line = [](const std::string& what, const std::string& value) {
    return fmt::format("{:<58} {}\n", what + ":", value);
  };
  std::string out = fmt::format("profile of step {} on the first rank\n\n", facts.step);
  out += line("world size", std::to_string(facts.ranks));
  out += line("data parallel size", std::to_string(facts.data_ranks));
  out += line("batch size per rank and pass", std::to_string(facts.micro_batch));
  out += line("global batch, tokens a sequence",
              fmt::format("{}, {}", facts.batch, facts.sequence_length));
  out += line("parameters of the blocks on this rank",
              text::count(static_cast<double>(all.parameters)));
  out += line("parameters of the model", text::count(static_cast<double>(facts.parameters)));
  out += line("forward MACs", text::count(all.forward.macs()) + "MACs");
  out += line("forward flops", text::count(all.forward.flops));
  out += line("forward latency", ms(all.forward.seconds));
  out += line("forward FLOPS", rate(all.forward.flops, all.forward.seconds));
  out += line("backward flops", text::count(all.backward.flops));
  out += line("backward latency", ms(all.backward.seconds));
  out += line("backward FLOPS", rate(all.backward.flops, all.backward.seconds));
  out +=
      line("forward and backward FLOPS", rate(flops, all.forward.seconds + all.backward.seconds));
  out += line("update latency", ms(facts.update_s));
  out += line("step latency", ms(facts.seconds));
  out += line("step FLOPS", rate(flops, facts.seconds));
  out += line("samples/second",
              facts.seconds > 0
                  ? fmt::format("{:.2f}", static_cast<double>(facts.batch) / facts.seconds)
                  : "none");
  return out;
}

/// Returns the names with the `top` highest values of a measure.
std::string leaders(std::vector<std::pair<std::string, double>> all,
                    std::int64_t top,
                    const std::function<std::string(double)>& words) {
  std::stable_sort(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> out;
  for (std::size_t i = 0; i < all.size() && std::cmp_less(i, top); ++i)
    out.push_back(all[i].first + " " + words(all[i].second));
  return text::join(out, ", ");
}

std::string aggregate(const std::vector<BlockWork>& blocks,
                      const BlockWork& all,
                      std::int64_t depth,
                      std::int64_t top) {
  const auto count = [](double value) { return text::count(value); };
  const auto macs = [](double value) { return text::count(value) + "MACs"; };
  const auto row = [](std::int64_t at,
                      const std::string& params,
                      const std::string& macs_text,
                      const std::string& time) {
    return fmt::format(
        "depth {}\n  parameters       {}\n  MACs             {}\n  latency          {}\n",
        at,
        params,
        macs_text,
        time);
  };
  const double seconds = all.forward.seconds + all.backward.seconds;
  const double all_macs = all.forward.macs() + all.backward.macs();
  std::string out = "\nmodules of each depth, the largest first; both passes\n";
  out += row(0,
             "model " + count(static_cast<double>(all.parameters)),
             "model " + macs(all_macs),
             "model " + ms(seconds));
  if (depth == 0) return out;
  std::vector<std::pair<std::string, double>> params, work, time;
  std::map<std::string, Work> operations;
  for (const BlockWork& block : blocks) {
    params.emplace_back(block.name, static_cast<double>(block.parameters));
    work.emplace_back(block.name, block.forward.macs() + block.backward.macs());
    time.emplace_back(block.name, block.forward.seconds + block.backward.seconds);
    for (const auto& [name, one] : block.operations)
      operations[name].add(one);
  }
  out += row(1, leaders(params, top, count), leaders(work, top, macs), leaders(time, top, ms));
  if (depth == 1) return out;
  work.clear();
  time.clear();
  for (const auto& [name, one] : operations) {
    work.emplace_back(name, one.macs());
    time.emplace_back(name, one.seconds);
  }
  return out + row(2, "(of blocks alone)", leaders(work, top, macs), leaders(time, top, ms));
}

std::string detail(const std::vector<BlockWork>& blocks, const BlockWork& all, std::int64_t depth) {
  const double seconds = all.forward.seconds + all.backward.seconds;
  const double macs = all.forward.macs() + all.backward.macs();
  std::string out =
      "\nevery block: parameters, share; MACs, share; latency, share; FLOPS. The objective's "
      "forward "
      "pass runs within its backward pass.\n";
  for (const BlockWork& block : blocks) {
    const double its = block.forward.seconds + block.backward.seconds;
    const double its_flops = block.forward.flops + block.backward.flops;
    out += fmt::format(
        "{:<24} {:>8}, {:5.1f}%; {:>8}MACs, {:5.1f}%; {:>11} (forward {}), {:5.1f}%; {}\n",
        block.name,
        text::count(static_cast<double>(block.parameters)),
        share(static_cast<double>(block.parameters), static_cast<double>(all.parameters)),
        text::count(its_flops / 2),
        share(its_flops / 2, macs),
        ms(its),
        ms(block.forward.seconds),
        share(its, seconds),
        rate(its_flops, its));
    if (depth == 1) continue;
    for (const auto& [name, one] : block.operations) {
      out += fmt::format("  {:<32} {:>6} calls; {:>8}MACs, {:5.1f}%; {:>11}, {:5.1f}%; {}\n",
                         name,
                         one.calls,
                         text::count(one.macs()),
                         share(one.macs(), macs),
                         ms(one.seconds),
                         share(one.seconds, seconds),
                         rate(one.flops, one.seconds));
    }
  }
  return out;
}

}  // namespace

void Work::add(const Work& other) {
  calls += other.calls;
  seconds += other.seconds;
  flops += other.flops;
}

BlockWork& WorkCounter::block(const std::string& name) {
  const auto it = std::find_if(
      blocks_.begin(), blocks_.end(), [&](const BlockWork& one) { return one.name == name; });
  if (it != blocks_.end()) return *it;
  blocks_.push_back({.name = name});
  return blocks_.back();
}

void WorkCounter::hear(const trace::Span& span) {
  if (span.kind == trace::Kind::Operation) {
    pending_.push_back({std::string(span.name), span.begin, {1, span.seconds(), span.flops}});
    return;
  }
  if (span.kind != trace::Kind::Block) return;
  BlockWork& its = block(std::string(span.detail));
  Work& pass = span.name == "forward" ? its.forward : its.backward;
  pass.add({1, span.seconds(), 0});
  const auto inside = std::stable_partition(
      pending_.begin(), pending_.end(), [&](const Pending& one) { return one.begin < span.begin; });
  for (auto it = inside; it != pending_.end(); ++it) {
    pass.flops += it->work.flops;
    its.operations[it->name].add(it->work);
  }
  pending_.erase(inside, pending_.end());
}

Work WorkCounter::outside() const {
  Work out;
  for (const Pending& one : pending_)
    out.add(one.work);
  return out;
}

std::string flops_report(const StepFacts& facts,
                         const std::vector<BlockWork>& blocks,
                         std::int64_t depth,
                         std::int64_t top,
                         bool detailed) {
  const BlockWork all = total_of(blocks);
  std::string out = summary(facts, all) + aggregate(blocks, all, depth, top);
  if (detailed && depth != 0) out += detail(blocks, all, depth);
  return out;
}

}  // namespace tessera::report
