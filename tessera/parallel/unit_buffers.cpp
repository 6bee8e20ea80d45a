// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/unit_buffers.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::parallel {

UnitBuffers::UnitBuffers(memory::Tier& tier, int buffers, memory::Tag tag)
    : tier_(tier), tag_(tag), most_(buffers) {
  TESSERA_ASSERT(buffers >= 1);
}

void UnitBuffers::set_units(std::size_t first,
                            std::span<const std::int64_t> bytes,
                            const std::string& what) {
  for (std::size_t u = first; u < first + bytes.size(); ++u) {
    if (Buffer* const buffer = buffer_of(u)) empty(*buffer);
  }
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const std::int64_t blocks = (bytes[i] + tier_.block() - 1) / tier_.block() * tier_.block();
    places_[first + i] = {.begin = begin, .bytes = blocks, .used = bytes[i]};
    begin += blocks;
    largest_ = std::max(largest_, blocks);
  }
  files_.erase(first);
  memory::TierFile* const file = (files_[first] = tier_.open(what, begin)).get();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    places_[first + i].file = file;
}

UnitBuffers::Buffer* UnitBuffers::buffer_of(std::size_t unit) {
  for (Buffer& buffer : buffers_) {
    if (buffer.use != Use::Free && buffer.unit == unit) return &buffer;
  }
  return nullptr;
}

UnitBuffers::Buffer* UnitBuffers::free_buffer() {
  for (Buffer& buffer : buffers_) {
    if (buffer.use == Use::Free) return &buffer;
  }
  return std::ssize(buffers_) < most_ ? &buffers_.emplace_back() : nullptr;
}

std::span<std::byte> UnitBuffers::blocks_of(const Buffer& buffer) const {
  return buffer.memory.bytes().first(static_cast<std::size_t>(places_.at(buffer.unit).bytes));
}

/// Waits for the transfer of a buffer that is not leased.
void UnitBuffers::empty(Buffer& buffer) {
  TESSERA_ASSERT(buffer.use != Use::Leased);
  places_.at(buffer.unit).file->wait(buffer.ticket);
  buffer.use = Use::Free;
}

/// Lets a buffer that is free be the unit's.
void UnitBuffers::give(Buffer& buffer, std::size_t unit) {
  if (std::ssize(buffer.memory.bytes()) < largest_) {
    const memory::ScopedTag tag(tag_);
    buffer.memory = {};
    buffer.memory = memory::StagingMemory(largest_);
  }
  buffer.unit = unit;
}

void UnitBuffers::read(Buffer& buffer, std::size_t unit) {
  give(buffer, unit);
  const Place& place = places_.at(unit);
  buffer.ticket = place.file->read(place.begin, blocks_of(buffer));
  buffer.use = Use::Reading;
}

void UnitBuffers::fetch(std::size_t unit) {
  if (buffer_of(unit) != nullptr) return;
  if (Buffer* const buffer = free_buffer()) read(*buffer, unit);
}

/// Returns a free buffer, for which it waits.
UnitBuffers::Buffer& UnitBuffers::any_buffer() {
  Buffer* buffer = free_buffer();
  for (std::size_t i = 0; i < buffers_.size() && buffer == nullptr; ++i) {
    if (buffers_[i].use == Use::Leased) continue;
    empty(buffers_[i]);
    buffer = &buffers_[i];
  }
  TESSERA_ASSERT(buffer != nullptr);
  return *buffer;
}

std::span<std::byte> UnitBuffers::acquire(std::size_t unit) {
  Buffer* buffer = buffer_of(unit);
  if (buffer == nullptr) {
    buffer = &any_buffer();
    read(*buffer, unit);
  }
  TESSERA_ASSERT(buffer->use != Use::Leased);
  places_.at(unit).file->wait(buffer->ticket);
  buffer->use = Use::Leased;
  return blocks_of(*buffer).first(static_cast<std::size_t>(places_.at(unit).used));
}

std::span<std::byte> UnitBuffers::replace(std::size_t unit) {
  Buffer* buffer = buffer_of(unit);
  if (buffer == nullptr) {
    buffer = &any_buffer();
  } else {
    empty(*buffer);
  }
  give(*buffer, unit);
  buffer->use = Use::Leased;
  return blocks_of(*buffer).first(static_cast<std::size_t>(places_.at(unit).used));
}

void UnitBuffers::release(std::size_t unit, bool changed) {
  Buffer* const buffer = buffer_of(unit);
  TESSERA_ASSERT(buffer != nullptr && buffer->use == Use::Leased);
  if (!changed) {
    buffer->use = Use::Free;
    return;
  }
  const Place& place = places_.at(unit);
  buffer->ticket = place.file->write(place.begin, blocks_of(*buffer));
  buffer->use = Use::Writing;
}

void UnitBuffers::settle(std::size_t unit) {
  Buffer* const buffer = buffer_of(unit);
  if (buffer != nullptr && buffer->use == Use::Writing) empty(*buffer);
}

std::shared_ptr<const ByteSource> UnitBuffers::snapshot(std::size_t first) {
  return files_.at(first)->snapshot();
}

}  // namespace tessera::parallel
