// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator_client.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/master_address.h"

namespace tessera::hosts {
namespace {

constexpr double kTickS = 0.05;
constexpr double kLifeSignS = 1.0;
constexpr double kSilenceS = 8.0;  // silence after which the coordinator counts as lost
constexpr std::size_t kLinesInFrame = 1024;
// The coordinator hears nothing of a host that tries to reach others, and waits 8 s.
constexpr double kReachSeconds = 4.0;
constexpr double kMarkSeconds = 2.0;
constexpr std::uint32_t kMostProblems = 16;

/// The words of RankLine::where, which its owner writes while others read it.
constexpr std::size_t kWhereWords = sizeof(RankLine::where) / sizeof(std::uint64_t);

std::uint64_t* where_words(RankLine& line) {
  return reinterpret_cast<std::uint64_t*>(line.where);
}

void write_line(FrameWriter& frame, int rank, RankLine& line) {
  frame.number(static_cast<std::int32_t>(rank))
      .number(line.state.load())
      .number(line.pid.load())
      .number(line.step.load())
      .number(line.last_seq.load())
      .number(line.waiting_for.load())
      .number(line.life.load());
  for (std::size_t i = 0; i < kWhereWords; ++i)
    frame.number(__atomic_load_n(where_words(line) + i, __ATOMIC_RELAXED));
}

void read_line(FrameReader& body, ControlPage& control, const HostPart& part) {
  const auto rank = body.number<std::int32_t>();
  const bool foreign = rank >= 0 && rank < static_cast<int>(control.ranks) &&
                       (rank < part.first_rank || rank >= part.first_rank + part.local_ranks);
  TESSERA_REQUIRE(foreign, Comm, fmt::format("another host sends the line of rank {}", rank), "");
  RankLine& line = control.line(rank);
  line.state = body.number<std::uint32_t>();
  line.pid = body.number<std::uint32_t>();
  line.step = body.number<std::int64_t>();
  line.last_seq = body.number<std::uint64_t>();
  line.waiting_for = body.number<std::uint32_t>();
  line.life = body.number<std::uint64_t>();
  std::array<std::uint64_t, kWhereWords> words{};
  for (std::uint64_t& word : words)
    word = body.number<std::uint64_t>();
  reinterpret_cast<char*>(words.data())[sizeof(words) - 1] = '\0';
  for (std::size_t i = 0; i < kWhereWords; ++i)
    __atomic_store_n(where_words(line) + i, words[i], __ATOMIC_RELAXED);
}

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

CoordinatorClient::CoordinatorClient(std::shared_ptr<const HostPart> part,
                                     const FactsOfHost& facts_of_host,
                                     double timeout_s,
                                     const RunFolderCheck& folder)
    : part_(std::move(part)),
      client_(part_->master,
              part_->port,
              part_->head_in_rank_0 ? kMasterPorts : 1,
              part_->secret,
              now_s() + timeout_s,
              part_->world_size),
      interval_s_(std::clamp(0.1 * part_->hosts / 8, 0.1, 1.0)) {
  HostFacts facts = facts_of_this_host(folder.path);
  const FolderMark mark(part_->first_rank == 0 ? folder.path : "");
  facts.folder = folder.path;
  facts.mark = mark.mark();
  facts.must_share = folder.must_be_shared;
  facts.must_own = folder.must_be_own;
  std::optional<ProbeListener> listener;
  try {
    facts.address = listening_address(client_.own_address());
    listener.emplace(facts.address);
    facts.port = listener->port();
    if (facts.port == 0)
      facts.problems.push_back(
          fmt::format("it cannot listen on {}: {}", facts.address, listener->why()));
  } catch (const Error& error) {
    facts.problems.push_back(error.text());
  }
  client_.send(join_frame(*part_, facts));
  tell_facts(facts_of_host);
  for (;;) {
    const std::optional<Frame> frame = client_.receive(now_s() + kTickS);
    if (frame && frame->type == FrameType::Ready) return;
    if (frame && frame->type == FrameType::Probe) answer_probe(*frame, folder);
    if (frame && frame->type == FrameType::Refuse) {
      FrameReader body(*frame);
      const HostProblem refused = read_problem(body);
      throw Refusal(refused.kind, refused.what, refused.fix);
    }
    if (frame) heard_ = now_s();
    // Hosts that compare large files are waited for; the coordinator shows that it lives.
    TESSERA_REQUIRE(!client_.closed() && now_s() < heard_ + kSilenceS,
                    Comm,
                    "the host of rank 0 went away while the hosts met",
                    "see its message");
    show_life();
  }
}

void CoordinatorClient::tell_facts(const FactsOfHost& facts) {
  std::vector<Fact> own;
  if (facts) own = facts([this] { show_life(); });
  client_.send(facts_frame(own));
  heard_ = now_s();
}

void CoordinatorClient::show_life() {
  if (now_s() < spoke_ + kLifeSignS) return;
  spoke_ = now_s();
  client_.send(FrameWriter(FrameType::Alive));
}

void CoordinatorClient::answer_probe(const Frame& frame, const RunFolderCheck& folder) {
  FrameReader body(frame);
  const std::string mark = body.text();
  std::vector<HostAddress> addresses(
      std::min<std::uint32_t>(body.number<std::uint32_t>(), kMostProbes));
  for (HostAddress& one : addresses) {
    one.host = body.text();
    one.address = body.text();
    one.port = body.number<std::int32_t>();
  }
  const std::vector<std::string> closed = unreachable(addresses, kReachSeconds);
  const bool compared = !mark.empty() && !folder.path.empty();
  const bool seen = compared && sees_mark(folder.path, mark, kMarkSeconds);
  FrameWriter answer(FrameType::Probed);
  answer.number(static_cast<std::uint8_t>(!compared ? 2
                                          : seen    ? 1
                                                    : 0))
      .number(static_cast<std::uint32_t>(closed.size()));
  for (const std::string& text : closed)
    answer.text(text);
  client_.send(answer);
}

CoordinatorClient::~CoordinatorClient() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  if (report_) {
    FrameWriter frame(FrameType::Report);
    client_.send(write_problem(frame, *report_));
  }
  // Ranks that never began did not end in order: the coordinator then sees a connection that is
  // lost.
  if (control_ != nullptr) client_.send(FrameWriter(FrameType::Leave));
}

void CoordinatorClient::start(ControlPage& control, std::function<void(int)> on_stop) {
  control_ = &control;
  on_stop_ = std::move(on_stop);
  sent_.resize(static_cast<std::size_t>(part_->local_ranks));
  heard_ = spoke_ = now_s();
  thread_ = quiet_thread([this] { run(); });
}

void CoordinatorClient::run() {
  while (!client_.closed()) {
    const bool last = ending_;
    try {
      // Frames of many hosts may arrive without a pause.
      const double until = now_s() + (last ? 0.0 : kTickS);
      for (bool more = true; more && now_s() <= until;) {
        const std::optional<Frame> frame = client_.receive(until);
        more = frame.has_value();
        if (!more) break;
        heard_ = now_s();
        obey(*frame);
      }
      send_changes(last ? spoke_ + 2 * kLifeSignS : now_s());
    } catch (const Error& error) {
      return break_off(error.what());
    }
    if (last) return;
    if (now_s() > heard_ + kSilenceS)
      return break_off(fmt::format("it has sent nothing for {} s", kSilenceS));
  }
  if (!ending_) break_off("the connection was closed");
}

void CoordinatorClient::break_off(const std::string& how) {
  control_->abort(
      0,
      static_cast<std::uint32_t>(Error::Kind::Comm),
      fmt::format("the host of rank 0, {}, was lost: {}; see whether it runs and can be "
                  "reached, then start the job again",
                  part_->master,
                  how));
}

void CoordinatorClient::obey(const Frame& frame) {
  FrameReader body(frame);
  if (frame.type == FrameType::Lines) {
    while (!body.done())
      read_line(body, *control_, *part_);
  } else if (frame.type == FrameType::Abort) {
    const auto rank = body.number<std::int32_t>();
    const auto kind = body.number<std::uint32_t>();
    told_abort_ = true;
    const int known = std::clamp(rank, 0, static_cast<int>(control_->ranks) - 1);
    control_->abort(known, kind, body.text());
  } else if (frame.type == FrameType::Stop) {
    on_stop_(body.number<std::int32_t>());
  }
}

void CoordinatorClient::send_changes(double now) {
  if (control_->aborted.load(std::memory_order_acquire) != 0 && !told_abort_) {
    told_abort_ = true;
    client_.send(FrameWriter(FrameType::Abort)
                     .number(static_cast<std::int32_t>(control_->abort_rank.load()))
                     .number(control_->aborted.load() - 1)
                     .text(control_->abort_message()));
  }
  if (now < looked_ + interval_s_) return;
  looked_ = now;
  FrameWriter frame(FrameType::Lines);
  std::size_t changed = 0;
  for (int i = 0; i < part_->local_ranks; ++i) {
    const int rank = part_->first_rank + i;
    FrameWriter one(FrameType::Lines);
    write_line(one, rank, control_->line(rank));
    std::string text = one.finish();
    std::string& before = sent_[static_cast<std::size_t>(i)];
    if (text == before || changed == kLinesInFrame) continue;
    write_line(frame, rank, control_->line(rank));
    before = std::move(text);
    ++changed;
  }
  if (changed == 0 && now < spoke_ + kLifeSignS) return;
  spoke_ = now;
  client_.send(changed == 0 ? FrameWriter(FrameType::Alive) : frame);
}

}  // namespace tessera::hosts
