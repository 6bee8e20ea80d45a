// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/copy_client.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"

namespace tessera::hosts {
namespace {

constexpr double kNoProgressS = 20.0;
constexpr std::uint64_t kPartBytes = std::uint64_t{1} << 20;
constexpr std::uint64_t kToTheEnd = std::numeric_limits<std::uint64_t>::max();

}  // namespace

CopyClient::CopyClient(CopyPlace place, const Secret& secret, double timeout_s)
    : place_(std::move(place)) {
  try {
    wire_.emplace(place_.address, place_.port, 1, secret, now_s() + timeout_s);
  } catch (const Error&) {
    fail("cannot be reached");
  }
}

void CopyClient::fail(const std::string& what) const {
  throw Error(
      Error::Kind::Comm,
      fmt::format(
          "the copy server of host {} ({}:{}) {}", place_.host, place_.address, place_.port, what),
      "see the messages of that host");
}

std::vector<CopyListing> CopyClient::list() {
  const std::optional<Frame> frame = wire_->send(FrameWriter(FrameType::List))
                                         ? wire_->receive(now_s() + kNoProgressS)
                                         : std::nullopt;
  if (!frame || frame->type != FrameType::List) fail("does not answer");
  FrameReader reader(*frame);
  std::vector<CopyListing> all(reader.number<std::uint32_t>());
  for (CopyListing& one : all) {
    one.set.generation = reader.number<std::int32_t>();
    one.set.step = reader.number<std::int64_t>();
    one.num_ranks = reader.number<std::int32_t>();
    for (auto left = reader.number<std::uint32_t>(); left > 0; --left)
      one.names.push_back(reader.text());
    for (auto left = reader.number<std::uint32_t>(); left > 0; --left)
      one.ranks.push_back(reader.number<std::int32_t>());
  }
  return all;
}

void CopyClient::begin(const CopyFile& file) {
  FrameWriter writer(FrameType::Put);
  for (const CopySet& set : {file.set, file.keep})
    writer.number(set.generation).number(set.step);
  writer.number(file.num_ranks).number(file.rank);
  writer.number(static_cast<std::uint8_t>(file.is_last));
  writer.text(file.name).number(file.bytes);
  if (!wire_->send(writer)) fail("closed the connection");
}

void CopyClient::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min<std::size_t>(bytes.size(), kPartBytes));
    if (!send_all(wire_->fd(), part.data(), part.size(), now_s() + kNoProgressS))
      fail("does not take the copy");
    bytes = bytes.subspan(part.size());
  }
}

void CopyClient::finish() {
  std::uint8_t taken = 0;
  receive(reinterpret_cast<std::byte*>(&taken), sizeof(taken));
}

void CopyClient::receive(std::byte* to, std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t count = std::min(kPartBytes, bytes - at);
    if (!receive_all(wire_->fd(), to + at, count, now_s() + kNoProgressS))
      fail("closed the connection, or is stuck");
    at += count;
  }
}

std::uint64_t CopyClient::ask(const CopySet& set,
                              const std::string& name,
                              std::uint64_t at,
                              std::uint64_t bytes) {
  FrameWriter writer(FrameType::Fetch);
  writer.number(set.generation).number(set.step).text(name).number(at).number(bytes);
  if (!wire_->send(writer)) fail("closed the connection");
  std::uint64_t found = 0;
  receive(reinterpret_cast<std::byte*>(&found), sizeof(found));
  return found;
}

std::string CopyClient::read_rest(const CopySet& set, const std::string& name, std::uint64_t at) {
  std::string out(ask(set, name, at, kToTheEnd), '\0');
  receive(reinterpret_cast<std::byte*>(out.data()), out.size());
  return out;
}

void CopyClient::read(const CopySet& set,
                      const std::string& name,
                      std::uint64_t at,
                      std::span<std::byte> out) {
  if (ask(set, name, at, out.size()) != out.size())
    fail(fmt::format("has {} shorter than its manifest says", name));
  receive(out.data(), out.size());
}

FoundCopies find_copies(const std::vector<CopyListing>& listings) {
  std::map<CopySet, std::pair<int, std::set<std::int32_t>>> ranks;
  for (const CopyListing& one : listings) {
    auto& [num_ranks, finished] = ranks[one.set];
    num_ranks = one.num_ranks;
    finished.insert(one.ranks.begin(), one.ranks.end());
  }
  FoundCopies out;
  for (const auto& [set, held] : ranks) {
    const int missing = held.first - static_cast<int>(held.second.size());
    if (missing <= 0 && held.first > 0) out.complete = set;
    out.newest = set;
    out.missing = missing;
  }
  return out;
}

}  // namespace tessera::hosts
