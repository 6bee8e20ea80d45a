// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/coordinator_client.h"

#include <optional>
#include <utility>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/hosts/host_check.h"
#include "tessera/hosts/master_address.h"
#include "tessera/hosts/rank_lines.h"

namespace tessera::hosts {
namespace {

// The coordinator hears nothing of a host that tries to reach others, and waits 8 s.
constexpr double kReachSeconds = 4.0;
constexpr double kMarkSeconds = 2.0;

ProbeAnswer look_around(const std::string& folder,
                        const std::string& mark,
                        const std::vector<HostAddress>& hosts) {
  ProbeAnswer out;
  out.closed = unreachable(hosts, kReachSeconds);
  if (!mark.empty() && !folder.empty()) out.folder = sees_mark(folder, mark, kMarkSeconds) ? 1 : 0;
  return out;
}

}  // namespace

CoordinatorClient::SocketLink::SocketLink(const HostPart& part, double timeout_s)
    : client_(part.master,
              part.port,
              part.head_in_rank_0 ? kMasterPorts : 1,
              part.secret,
              now_s() + timeout_s,
              part.world_size) {}

double CoordinatorClient::SocketLink::now() const {
  return now_s();
}

bool CoordinatorClient::SocketLink::receive_now(double deadline, std::optional<Frame>& frame) {
  frame = client_.receive(deadline);
  return true;
}

void CoordinatorClient::SocketLink::resume_later(std::coroutine_handle<> /*waiting*/,
                                                 double /*deadline*/,
                                                 std::optional<Frame>& /*frame*/) {
  TESSERA_ASSERT(false);
}

CoordinatorClient::SharedPage::SharedPage(ControlPage& control, std::function<void(int)> on_stop)
    : control_(control), on_stop_(std::move(on_stop)) {}

std::string CoordinatorClient::SharedPage::line(int rank) {
  return line_bytes(rank, control_.line(rank));
}

void CoordinatorClient::SharedPage::take_line(int rank, std::string_view bytes) {
  write_line(bytes, control_.line(rank));
}

std::optional<BrokenWorld> CoordinatorClient::SharedPage::broken() {
  const std::uint32_t aborted = control_.aborted.load(std::memory_order_acquire);
  if (aborted == 0) return std::nullopt;
  return BrokenWorld{
      static_cast<int>(control_.abort_rank.load()), aborted - 1, control_.abort_message()};
}

void CoordinatorClient::SharedPage::break_world(const BrokenWorld& how) {
  control_.abort(how.rank, how.kind, how.text);
}

void CoordinatorClient::SharedPage::stop(int signal) {
  on_stop_(signal);
}

CoordinatorClient::CoordinatorClient(std::shared_ptr<const HostPart> part,
                                     const FactsOfHost& facts_of_host,
                                     double timeout_s,
                                     const RunFolderCheck& folder)
    : part_(std::move(part)), link_(*part_, timeout_s), protocol_(*part_, link_) {
  HostFacts facts = facts_of_this_host(folder.path);
  const FolderMark mark(part_->first_rank == 0 ? folder.path : "");
  facts.folder = folder.path;
  facts.mark = mark.mark();
  facts.must_share = folder.must_be_shared;
  facts.must_own = folder.must_be_own;
  std::optional<ProbeListener> listener;
  try {
    facts.address = listening_address(own_address());
    listener.emplace(facts.address);
    facts.port = listener->port();
    if (facts.port == 0)
      facts.problems.push_back(
          fmt::format("it cannot listen on {}: {}", facts.address, listener->why()));
  } catch (const Error& error) {
    facts.problems.push_back(error.text());
  }
  const Routine joined = protocol_.join(
      facts, facts_of_host, [&](const std::string& marked, const std::vector<HostAddress>& hosts) {
        return look_around(folder.path, marked, hosts);
      });
  joined.get();
}

CoordinatorClient::~CoordinatorClient() {
  ending_ = true;
  if (thread_.joinable()) thread_.join();
  // Ranks that never began did not end in order: the coordinator then sees a connection that is
  // lost.
  if (page_) {
    protocol_.leave(report_);
  } else if (report_) {
    FrameWriter frame(FrameType::Report);
    link_.send(write_problem(frame, *report_));
  }
}

void CoordinatorClient::start(ControlPage& control, std::function<void(int)> on_stop) {
  page_.emplace(control, std::move(on_stop));
  thread_ = quiet_thread([this] {
    const Routine routine = protocol_.follow(*page_, ending_);
    routine.get();
  });
}

}  // namespace tessera::hosts
