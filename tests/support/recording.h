// SPDX-License-Identifier: Apache-2.0
// Writes down in which order a rank posts, waits and runs blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/comm/transport.h"
#include "tessera/parallel/action.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::test {

using Log = std::vector<std::string>;

class RecordedWork final : public comm::Work {
 public:
  RecordedWork(comm::WorkPtr work, std::string what, Log& log)
      : work_(std::move(work)), what_(std::move(what)), log_(log) {}
  bool done() override { return work_->done(); }
  void wait() override {
    log_.push_back("wait for " + what_);
    work_->wait();
  }
  void wait_reusable() override { work_->wait_reusable(); }

 private:
  comm::WorkPtr work_;
  std::string what_;
  Log& log_;
};

/// Records operations that are posted and waited for, and the data moved.
class RecordingTransport final : public comm::Transport {
 public:
  RecordingTransport(std::unique_ptr<comm::Transport> transport, Log& log)
      : transport_(std::move(transport)), log_(log) {}

  [[nodiscard]] std::string_view name() const override { return transport_->name(); }
  comm::RegionPtr allocate(std::size_t bytes, memory::Tag tag) override {
    return transport_->allocate(bytes, tag);
  }
  comm::WorkPtr reduce_scatter(const comm::Group& group,
                               comm::Span in,
                               comm::Span out,
                               comm::Op op,
                               comm::Write write,
                               comm::CallSite site) override {
    const std::string what = site.what;
    return record(transport_->reduce_scatter(group, in, out, op, write, std::move(site)), what);
  }
  comm::WorkPtr all_gather(const comm::Group& group,
                           comm::Span in,
                           comm::Span out,
                           comm::CallSite site) override {
    const std::string what = site.what;
    return record(transport_->all_gather(group, in, out, std::move(site)), what);
  }
  comm::WorkPtr all_reduce(const comm::Group& group,
                           comm::Span data,
                           comm::Op op,
                           comm::CallSite site) override {
    return transport_->all_reduce(group, data, op, std::move(site));
  }
  comm::WorkPtr broadcast(const comm::Group& group,
                          comm::Span data,
                          int root_index,
                          comm::CallSite site) override {
    return transport_->broadcast(group, data, root_index, std::move(site));
  }
  comm::WorkPtr all_to_all(const comm::Group& group,
                           comm::Span in,
                           comm::Span out,
                           comm::CallSite site) override {
    return transport_->all_to_all(group, in, out, std::move(site));
  }
  comm::WorkPtr all_to_all_v(const comm::Group& group,
                             comm::Span in,
                             comm::Span out,
                             std::span<const std::int64_t> counts,
                             comm::CallSite site) override {
    return transport_->all_to_all_v(group, in, out, counts, std::move(site));
  }
  comm::WorkPtr barrier(const comm::Group& group, comm::CallSite site) override {
    return transport_->barrier(group, std::move(site));
  }
  comm::WorkPtr send(int peer, int channel, comm::Span data, comm::CallSite site) override {
    const std::string what = "send " + site.what;
    return record(transport_->send(peer, channel, data, std::move(site)), what);
  }
  comm::WorkPtr recv(int peer, int channel, comm::Span data, comm::CallSite site) override {
    const std::string what = "receive " + site.what;
    return record(transport_->recv(peer, channel, data, std::move(site)), what);
  }
  void progress() noexcept override {
    log_.emplace_back("progress");
    transport_->progress();
  }
  void abort(const Error& error) noexcept override { transport_->abort(error); }
  double take_comm_seconds() noexcept override { return transport_->take_comm_seconds(); }
  [[nodiscard]] comm::Traffic traffic() const noexcept override { return transport_->traffic(); }
  [[nodiscard]] comm::Traffic traffic(const comm::Group& group) const override {
    return transport_->traffic(group);
  }
  [[nodiscard]] comm::Traffic messages() const noexcept override { return transport_->messages(); }
  void set_stall_limit(double seconds) noexcept override { transport_->set_stall_limit(seconds); }

 private:
  comm::WorkPtr record(comm::WorkPtr work, const std::string& what) {
    log_.push_back("post " + what);
    return std::make_unique<RecordedWork>(std::move(work), what, log_);
  }

  std::unique_ptr<comm::Transport> transport_;
  Log& log_;
};

inline std::string text_of_run(const parallel::Action& action, const std::string& block) {
  return (parallel::is_backward(action.kind) ? "backward " : "forward ") + block + " micro-batch " +
         std::to_string(action.micro);
}

/// As the last policy it sees the beginning of a block, as the first one its end.
class RunRecorder final : public parallel::Policy {
 public:
  RunRecorder(parallel::ModelInstance& model, bool last, Log& log)
      : model_(model), last_(last), log_(log) {}
  void before(const parallel::Action& action, const parallel::BlockRun& run) override {
    if (last_) log_.push_back("begin " + text_of_run(action, model_.name(run.block)));
  }
  void after(const parallel::Action& action, const parallel::BlockRun& run) override {
    if (!last_) log_.push_back("end " + text_of_run(action, model_.name(run.block)));
  }

 private:
  parallel::ModelInstance& model_;
  bool last_;
  Log& log_;
};

}  // namespace tessera::test
