// SPDX-License-Identifier: Apache-2.0
#include "tessera/tensor/dtype.h"

#include "tessera/base/error.h"

namespace tessera {

at::ScalarType to_torch(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return at::ScalarType::Double;
    case DType::F32:
      return at::ScalarType::Float;
    case DType::F16:
      return at::ScalarType::Half;
    case DType::BF16:
      return at::ScalarType::BFloat16;
    case DType::I64:
      return at::ScalarType::Long;
    case DType::I32:
      return at::ScalarType::Int;
    case DType::I16:
      return at::ScalarType::Short;
    case DType::I8:
      return at::ScalarType::Char;
    case DType::U64:
      return at::ScalarType::UInt64;
    case DType::U32:
      return at::ScalarType::UInt32;
    case DType::U16:
      return at::ScalarType::UInt16;
    case DType::U8:
      return at::ScalarType::Byte;
    case DType::Bool:
      return at::ScalarType::Bool;
  }
  throw Error(Error::Kind::Bug, "element type " + std::to_string(static_cast<int>(dtype)));
}

DType from_torch(at::ScalarType type) {
  for (int i = 0; i <= static_cast<int>(DType::Bool); ++i) {
    if (to_torch(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  throw Error(Error::Kind::Unsupported,
              std::string("tensors of type ") + c10::toString(type) +
                  " cannot be stored in files or buffers",
              "convert them to a type that safetensors supports");
}

c10::Device to_torch(Device device) {
  const auto index = static_cast<c10::DeviceIndex>(device.index);
  switch (device.kind) {
    case DeviceKind::Cpu:
      return {c10::DeviceType::CPU};
    case DeviceKind::Cuda:
      return {c10::DeviceType::CUDA, index};
    case DeviceKind::Plugin:
      return {c10::DeviceType::PrivateUse1, index};
    case DeviceKind::Meta:
      break;
  }
  return {c10::DeviceType::Meta};
}

Device from_torch(c10::Device device) {
  const int index = device.has_index() ? device.index() : 0;
  switch (device.type()) {
    case c10::DeviceType::CPU:
      return {};
    case c10::DeviceType::CUDA:
      return {DeviceKind::Cuda, index};
    case c10::DeviceType::PrivateUse1:
      return {DeviceKind::Plugin, index};
    case c10::DeviceType::Meta:
      return {DeviceKind::Meta, index};
    default:
      break;
  }
  throw Error(Error::Kind::Unsupported,
              "tensors on " + device.str() + " are not supported",
              "use tensors of the CPU, of CUDA, or of a registered device");
}

}  // namespace tessera
