// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/host_protocol.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "tessera/hosts/rank_lines.h"

namespace tessera::hosts {
namespace {

constexpr double kLineTickS = 0.05;
constexpr double kLifeSignS = 1.0;
constexpr double kHeadSilenceS = 8.0;  // silence after which the coordinator counts as lost
constexpr std::uint32_t kMostProblems = 16;

}  // namespace

FrameWriter join_frame(const HostPart& part, const HostFacts& facts) {
  FrameWriter frame(FrameType::Join);
  frame.number(static_cast<std::int32_t>(part.host))
      .number(static_cast<std::int32_t>(part.first_rank))
      .number(static_cast<std::int32_t>(part.local_ranks))
      .number(static_cast<std::int32_t>(part.world_size))
      .text(part.name)
      .text(facts.version)
      .text(facts.build)
      .number(static_cast<std::int32_t>(facts.cores))
      .number(facts.memory)
      .number(facts.disk)
      .number(facts.clock_s)
      .text(facts.torch)
      .text(facts.address)
      .number(static_cast<std::int32_t>(facts.port))
      .text(facts.folder)
      .text(facts.mark)
      .number(static_cast<std::uint8_t>(facts.must_share ? 1 : 0))
      .number(static_cast<std::uint8_t>(facts.must_own ? 1 : 0))
      .number(static_cast<std::uint32_t>(facts.problems.size()));
  for (const std::string& problem : facts.problems)
    frame.text(problem);
  return frame;
}

FrameWriter facts_frame(const std::vector<Fact>& facts) {
  FrameWriter frame(FrameType::Facts);
  frame.number(static_cast<std::uint32_t>(facts.size()));
  for (const Fact& fact : facts)
    frame.number(static_cast<std::uint8_t>(fact.kind))
        .text(fact.what)
        .text(fact.where)
        .text(fact.value);
  return frame;
}

std::vector<Fact> read_facts(FrameReader& body) {
  std::vector<Fact> out;
  for (auto left = body.number<std::uint32_t>(); left > 0; --left) {
    Fact& fact = out.emplace_back();
    constexpr auto kLast = static_cast<std::uint8_t>(Fact::Kind::Derived);
    fact.kind = static_cast<Fact::Kind>(std::min(body.number<std::uint8_t>(), kLast));
    fact.what = body.text();
    fact.where = body.text();
    fact.value = body.text();
  }
  return out;
}

Arrival read_join(FrameReader& body) {
  Arrival out;
  HostFacts& facts = out.facts;
  out.host = body.number<std::int32_t>();
  facts.first_rank = body.number<std::int32_t>();
  facts.ranks = body.number<std::int32_t>();
  out.world = body.number<std::int32_t>();
  facts.name = body.text();
  facts.version = body.text();
  facts.build = body.text();
  facts.cores = body.number<std::int32_t>();
  facts.memory = body.number<std::uint64_t>();
  facts.disk = body.number<std::uint64_t>();
  facts.clock_s = body.number<double>();
  facts.torch = body.text();
  facts.address = body.text();
  facts.port = body.number<std::int32_t>();
  facts.folder = body.text();
  facts.mark = body.text();
  facts.must_share = body.number<std::uint8_t>() != 0;
  facts.must_own = body.number<std::uint8_t>() != 0;
  const auto problems = std::min(body.number<std::uint32_t>(), kMostProblems);
  for (std::uint32_t i = 0; i < problems; ++i)
    facts.problems.push_back(body.text());
  return out;
}

FrameWriter& write_problem(FrameWriter& frame, const HostProblem& problem) {
  return frame.number(static_cast<std::uint32_t>(problem.kind))
      .text(problem.what)
      .text(problem.fix);
}

HostProblem read_problem(FrameReader& body) {
  HostProblem out;
  constexpr auto kLast = static_cast<std::uint32_t>(Error::Kind::Bug);
  out.kind = static_cast<Error::Kind>(std::min(body.number<std::uint32_t>(), kLast));
  out.what = body.text();
  out.fix = body.text();
  return out;
}

HostProtocol::HostProtocol(const HostPart& part, HostLink& link)
    : part_(part), link_(link), interval_s_(lines_interval_s(part.hosts)) {}

Routine HostProtocol::join(const HostFacts& facts, const FactsOfHost& facts_of_host, Probe probe) {
  link_.send(join_frame(part_, facts));
  std::vector<Fact> own;
  if (facts_of_host) own = facts_of_host([this] { show_life(); });
  link_.send(facts_frame(own));
  heard_ = link_.now();
  for (;;) {
    const std::optional<Frame> frame = co_await link_.receive(link_.now() + kLifeSignS);
    if (frame && frame->type == FrameType::Ready) co_return;
    if (frame && frame->type == FrameType::Probe) {
      FrameReader body(*frame);
      const std::string mark = body.text();
      std::vector<HostAddress> hosts(
          std::min<std::uint32_t>(body.number<std::uint32_t>(), kMostProbes));
      for (HostAddress& one : hosts) {
        one.host = body.text();
        one.address = body.text();
        one.port = body.number<std::int32_t>();
      }
      const ProbeAnswer found = probe(mark, hosts);
      FrameWriter answer(FrameType::Probed);
      answer.number(found.folder).number(static_cast<std::uint32_t>(found.closed.size()));
      for (const std::string& text : found.closed)
        answer.text(text);
      link_.send(answer);
    }
    if (frame && frame->type == FrameType::Refuse) {
      FrameReader body(*frame);
      const HostProblem refused = read_problem(body);
      throw Refusal(refused.kind, refused.what, refused.fix);
    }
    if (frame) heard_ = link_.now();
    // Hosts that compare large files are waited for; the coordinator shows that it lives.
    TESSERA_REQUIRE(!link_.closed() && link_.now() < heard_ + kHeadSilenceS,
                    Comm,
                    "the host of rank 0 went away while the hosts met",
                    "see its message");
    show_life();
  }
}

void HostProtocol::show_life() {
  if (link_.now() < spoke_ + kLifeSignS) return;
  spoke_ = link_.now();
  link_.send(FrameWriter(FrameType::Alive));
}

Routine HostProtocol::follow(HostPage& page, const std::atomic<bool>& ending) {
  sent_.assign(static_cast<std::size_t>(part_.local_ranks), "");
  heard_ = spoke_ = link_.now();
  while (!link_.closed()) {
    const bool last = ending;
    // Lines are looked at this often; a world that is broken is reported at once.
    const double until = link_.now() + (last ? 0.0 : kLineTickS);
    try {
      for (bool more = true; more && link_.now() <= until;) {
        const std::optional<Frame> frame = co_await link_.receive(until);
        more = frame.has_value();
        if (!more) break;
        heard_ = link_.now();
        obey(*frame, page);
      }
      send_changes(last ? spoke_ + 2 * kLifeSignS : link_.now(), page);
    } catch (const Error& error) {
      break_off(error.what(), page);
      co_return;
    }
    if (last) co_return;
    if (link_.now() > heard_ + kHeadSilenceS) {
      break_off(fmt::format("it has sent nothing for {} s", kHeadSilenceS), page);
      co_return;
    }
  }
  if (!ending) break_off("the connection was closed", page);
}

void HostProtocol::break_off(const std::string& how, HostPage& page) const {
  page.break_world({0,
                    static_cast<std::uint32_t>(Error::Kind::Comm),
                    fmt::format("the host of rank 0, {}, was lost: {}; see whether it runs and can "
                                "be reached, then start the job again",
                                part_.master,
                                how)});
}

void HostProtocol::obey(const Frame& frame, HostPage& page) {
  FrameReader body(frame);
  if (frame.type == FrameType::Lines) {
    for (const std::string_view line : lines_of(frame)) {
      const int rank = rank_of_line(line);
      const bool foreign =
          rank >= 0 && rank < part_.world_size &&
          (rank < part_.first_rank || rank >= part_.first_rank + part_.local_ranks);
      TESSERA_REQUIRE(
          foreign, Comm, fmt::format("another host sends the line of rank {}", rank), "");
      page.take_line(rank, line);
    }
  } else if (frame.type == FrameType::Abort) {
    BrokenWorld how;
    how.rank = std::clamp(body.number<std::int32_t>(), 0, part_.world_size - 1);
    how.kind = body.number<std::uint32_t>();
    how.text = body.text();
    told_abort_ = true;
    page.break_world(how);
  } else if (frame.type == FrameType::Stop) {
    page.stop(body.number<std::int32_t>());
  }
}

void HostProtocol::send_changes(double now, HostPage& page) {
  if (!told_abort_) {
    if (const std::optional<BrokenWorld> broken = page.broken()) {
      told_abort_ = true;
      link_.send(FrameWriter(FrameType::Abort)
                     .number(static_cast<std::int32_t>(broken->rank))
                     .number(broken->kind)
                     .text(broken->text));
    }
  }
  if (now < looked_ + interval_s_) return;
  looked_ = now;
  FrameWriter frame(FrameType::Lines);
  std::size_t changed = 0;
  for (int i = 0; i < part_.local_ranks && changed < kLinesInFrame; ++i) {
    std::string line = page.line(part_.first_rank + i);
    std::string& before = sent_[static_cast<std::size_t>(i)];
    if (line == before) continue;
    frame.raw(line);
    before = std::move(line);
    ++changed;
  }
  if (changed == 0 && now < spoke_ + kLifeSignS) return;
  spoke_ = now;
  link_.send(changed == 0 ? FrameWriter(FrameType::Alive) : frame);
}

void HostProtocol::leave(const std::optional<HostProblem>& report) {
  if (report) {
    FrameWriter frame(FrameType::Report);
    link_.send(write_problem(frame, *report));
  }
  link_.send(FrameWriter(FrameType::Leave));
}

}  // namespace tessera::hosts
