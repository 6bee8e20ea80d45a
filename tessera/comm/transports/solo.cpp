// SPDX-License-Identifier: Apache-2.0
#include "tessera/comm/transports/solo.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>

#include "tessera/base/text.h"
#include "tessera/comm/registry.h"
#include "tessera/comm/transports/local.h"
#include "tessera/comm/watchdog.h"
#include "tessera/launch/launch.h"

namespace tessera::comm {
namespace {

class PrivateRegion final : public Region {
 public:
  PrivateRegion(std::size_t bytes, memory::Tag tag) : bytes_(bytes) {
    mapped_ = bytes == 0 ? 1 : bytes;
    const std::uint64_t available = launch::available_memory();
    void* data = MAP_FAILED;
    if (mapped_ <= available) {
      data = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    TESSERA_REQUIRE(data != MAP_FAILED,
                    Memory,
                    fmt::format("cannot allocate {} for {}: {} are available",
                                text::bytes(bytes),
                                memory::name(tag),
                                text::bytes(available)),
                    "use a smaller model or micro-batch");
    madvise(data, mapped_, MADV_HUGEPAGE);
    data_ = data;
    charge_ = memory::Charge::open(static_cast<std::int64_t>(mapped_), tag);
  }
  ~PrivateRegion() override {
    charge_.release();
    munmap(data_, mapped_);
  }
  PrivateRegion(const PrivateRegion&) = delete;
  PrivateRegion& operator=(const PrivateRegion&) = delete;
  [[nodiscard]] void* data() const override { return data_; }
  [[nodiscard]] std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  std::size_t mapped_ = 0;
  void* data_ = nullptr;
  memory::Charge charge_;
};

class SoloTransport final : public Transport {
 public:
  explicit SoloTransport(ControlPage& control) : control_(control) {}
  [[nodiscard]] std::string_view name() const override { return "solo"; }
  RegionPtr allocate(std::size_t bytes, memory::Tag tag) override {
    return std::make_shared<PrivateRegion>(bytes, tag);
  }

  WorkPtr reduce_scatter(
      const Group& group, Span in, Span out, Op op, Write write, CallSite site) override {
    begin(site);
    check_reduce_scatter(group, in, out, op, site);
    reduce_scatter_alone(in, out, op, write);
    return completed_work(control_);
  }
  WorkPtr all_gather(const Group& group, Span in, Span out, CallSite site) override {
    begin(site);
    check_all_gather(group, in, out, site);
    copy_alone(in, out);
    return completed_work(control_);
  }
  WorkPtr all_reduce(const Group&, Span data, Op op, CallSite site) override {
    begin(site);
    check_all_reduce(data, op, site);
    return completed_work(control_);
  }
  WorkPtr broadcast(const Group& group, Span data, int root_index, CallSite site) override {
    begin(site);
    check_broadcast(group, data, root_index, site);
    return completed_work(control_);
  }
  WorkPtr all_to_all(const Group& group, Span in, Span out, CallSite site) override {
    begin(site);
    check_all_to_all(group, in, out, site);
    copy_alone(in, out);
    return completed_work(control_);
  }
  WorkPtr all_to_all_v(const Group& group,
                       Span in,
                       Span out,
                       std::span<const std::int64_t> counts,
                       CallSite site) override {
    begin(site);
    check_all_to_all_v(group, in, out, counts, site);
    copy_alone(in, out);
    return completed_work(control_);
  }
  WorkPtr barrier(const Group&, CallSite site) override {
    begin(site);
    return completed_work(control_);
  }
  WorkPtr send(int peer, int, Span data, CallSite site) override {
    check_message(0, 1, peer, data, site);
    return completed_work(control_);
  }
  WorkPtr recv(int peer, int, Span data, CallSite site) override {
    check_message(0, 1, peer, data, site);
    return completed_work(control_);
  }

  void progress() noexcept override {}
  void abort(const Error& error) noexcept override { abort_world(control_, 0, error); }
  double take_comm_seconds() noexcept override { return 0; }
  [[nodiscard]] Traffic traffic() const noexcept override { return {}; }
  [[nodiscard]] Traffic traffic(const Group&) const override { return {}; }
  [[nodiscard]] Traffic messages() const noexcept override { return {}; }
  void set_stall_limit(double) noexcept override {}

 private:
  void begin(const CallSite& site) {
    throw_if_aborted(control_);
    publish_operation(control_, 0, describe(site));
  }
  ControlPage& control_;
};

}  // namespace

std::unique_ptr<Transport> make_solo_transport(ControlPage* control) {
  return std::make_unique<SoloTransport>(*control);
}

namespace {

std::string why_not_solo(const WorldNeeds& needs) {
  return needs.info.arenas.empty() ? "" : "it serves a single rank";
}

MadeTransport make_solo(const WorldNeeds& needs,
                        ControlPage* control,
                        const std::shared_ptr<Transport>&) {
  return {make_solo_transport(control), {0, 1, needs.info.local_rank}};
}

TESSERA_TRANSPORT("solo", {.why_not = why_not_solo, .make = make_solo});

}  // namespace
}  // namespace tessera::comm
