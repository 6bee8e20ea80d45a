// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/saver.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/checkpoint/consensus.h"
#include "tessera/checkpoint/node_parts.h"
#include "tessera/checkpoint/storage.h"

namespace tessera::engine {
namespace {

/// Returns the kernel's counter of the bytes that this process has written; nothing: it is unknown.
std::optional<std::uint64_t> bytes_written() {
  std::ifstream file("/proc/self/io");
  for (std::string name; file >> name;) {
    std::uint64_t value = 0;
    if (file >> value && name == "wchar:") return value;
  }
  return std::nullopt;
}

/// Signals that this rank is alive while it waits for its disk, so that peers wait as long as
/// needed.
class ShowsLife {
 public:
  explicit ShowsLife(comm::World& world) : saves_(world, Activity::Save) {
    try {
      thread_ = std::thread([this, &world] {
        std::unique_lock lock(mutex_);
        std::optional<std::uint64_t> before = bytes_written();
        while (!end_.wait_for(lock, kSign, [this] { return over_; })) {
          // A disk that takes nothing holds this rank up, which the hang watch reports.
          const std::optional<std::uint64_t> now = bytes_written();
          if (!now || now != before) {
            world.show_life();
          } else {
            world.keep_alive();
          }
          before = now;
        }
      });
    } catch (const std::system_error& error) {
      // The signals are needed only if the disk takes minutes.
      log::info(fmt::format("a checkpoint is saved without signs of life: no thread can be had: {}",
                            error.what()));
    }
  }
  ~ShowsLife() {
    {
      const std::scoped_lock lock(mutex_);
      over_ = true;
    }
    end_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  ShowsLife(const ShowsLife&) = delete;
  ShowsLife& operator=(const ShowsLife&) = delete;

 private:
  static constexpr std::chrono::milliseconds kSign{250};
  std::mutex mutex_;
  std::condition_variable end_;
  bool over_ = false;
  comm::ActivityScope saves_;
  std::thread thread_;  ///< last member, because it uses the others
};

/// A checkpoint::CopyOut. Copies each span into its own block: the sizes recur with every save, so
/// the caching allocator reuses the blocks and the kernel maps no new pages.
std::shared_ptr<const void> copy_out(std::vector<std::span<const std::byte>>& spans) {
  constexpr std::int64_t kGrain = std::int64_t{1} << 20;
  const memory::ScopedTag tag(memory::Tag::Optimizer);
  auto blocks = std::make_shared<std::vector<at::Tensor>>();
  for (auto& from : spans) {
    const auto size = static_cast<std::int64_t>(from.size());
    auto* const to =
        static_cast<std::byte*>(blocks->emplace_back(at::empty({size}, at::kByte)).data_ptr());
    at::parallel_for(0, size, kGrain, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to + begin, from.data() + begin, static_cast<std::size_t>(end - begin));
    });
    from = {to, from.size()};
  }
  return blocks;
}

}  // namespace

Saver::Saver(bool by_host,
             comm::World& world,
             TrainState& state,
             Experience* experience,
             std::function<checkpoint::Meta()> meta)
    : by_host_(by_host),
      world_(world),
      state_(state),
      experience_(experience),
      meta_(std::move(meta)) {}

checkpoint::Ranks Saver::ranks() {
  checkpoint::Ranks ranks;
  ranks.rank = world_.rank();
  ranks.size = world_.size();
  if (by_host_) {
    ranks.node = world_.host().index;
    ranks.nodes = world_.host().count;
    ranks.local_rank = world_.host().local_rank;
  }
  ranks.barrier = [this] { world_.barrier(TESSERA_HERE("save")); };
  ranks.largest = [this](const std::vector<std::uint32_t>& mine) {
    const std::vector<double> largest = world_.all_reduce(
        world_.everyone(), {mine.begin(), mine.end()}, comm::Op::Max, TESSERA_HERE("save"));
    return std::vector<std::uint32_t>(largest.begin(), largest.end());
  };
  return ranks;
}

std::vector<checkpoint::PieceBytes> Saver::pieces() {
  std::vector<checkpoint::PieceBytes> out = state_.pieces();
  if (experience_ != nullptr) {
    for (checkpoint::PieceBytes& piece : experience_->pieces())
      out.push_back(std::move(piece));
  }
  return out;
}

void Saver::release_pieces() {
  state_.release_pieces();
  if (experience_ != nullptr) experience_->release_pieces();
}

std::filesystem::path Saver::save(const std::filesystem::path& root) {
  if (copying()) finish_copy();
  TESSERA_ASSERT(!saving());
  state_.wait();
  const std::shared_ptr<void> release(this, [](Saver* saver) { saver->release_pieces(); });
  const ShowsLife life(world_);
  return checkpoint::save(root, meta_(), pieces(), ranks());
}

void Saver::save_in_background(const std::filesystem::path& root, std::function<void()> then) {
  if (copying()) finish_copy();
  TESSERA_ASSERT(!saving());
  state_.wait();
  const checkpoint::Ranks ranks = this->ranks();
  std::vector<checkpoint::PieceBytes> pieces;
  const std::shared_ptr<const void> use(this, [this](const void*) { release_pieces(); });
  // If one rank lacks memory, all ranks throw.
  checkpoint::run_together(
      ranks, [&] { pieces = this->pieces(); }, [] {});
  background_ = std::make_unique<checkpoint::BackgroundSave>(
      checkpoint::real_storage(), root, meta_(), std::move(pieces), use, ranks, std::move(then));
}

void Saver::copy_in_background(checkpoint::CopyTarget target) {
  TESSERA_ASSERT(!saving());
  state_.wait();
  const checkpoint::Ranks ranks = this->ranks();
  std::vector<checkpoint::PieceBytes> pieces;
  const std::shared_ptr<const void> use(this, [this](const void*) { release_pieces(); });
  const hosts::CopySet set = target.set;
  checkpoint::run_together(
      ranks, [&] { pieces = this->pieces(); }, [] {});
  background_ = std::make_unique<checkpoint::BackgroundSave>(
      checkpoint::copy_saver(std::move(target), meta_(), pieces, ranks.rank, ranks.size),
      pieces,
      use,
      ranks);
  copied_ = set;
}

void Saver::finish_copy() {
  TESSERA_ASSERT(copying());
  const hosts::CopySet set = *std::exchange(copied_, std::nullopt);
  try {
    static_cast<void>(finish());
    last_copy_ = set;
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Io) throw;
    copy_failure_ = error;
  }
}

double Saver::before_change() {
  return saving() ? background_->before_change(copy_out) : 0.0;
}

bool Saver::settled() const {
  TESSERA_ASSERT(saving());
  return background_->settled();
}

checkpoint::BackgroundSave::Outcome Saver::finish() {
  TESSERA_ASSERT(saving());
  // The save has ended, even if finish() throws.
  const auto save = std::move(background_);
  const ShowsLife life(world_);
  return save->finish();
}

std::vector<double> Saver::to_sum() const {
  const checkpoint::BackgroundSave::Progress save =
      saving() ? background_->progress() : checkpoint::BackgroundSave::Progress();
  return {proposed_ ? 1.0 : 0.0, save.busy ? 1.0 : 0.0, save.failed ? 1.0 : 0.0};
}

bool Saver::advance(std::span<const double> sums) {
  if (saving()) background_->advance({sums[1] > 0, sums[2] > 0});
  return sums[0] > 0;
}

}  // namespace tessera::engine
