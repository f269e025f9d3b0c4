#include "scratch.hpp"

#include <cstdlib>
#include <new>

namespace batchdeck {

namespace {
constexpr size_t kPage = 4096;
}

Scratch::~Scratch() { std::free(data_); }

void* Scratch::get(size_t bytes) {
  if (bytes > size_) {
    std::free(data_);
    size_ = (bytes + kPage - 1) / kPage * kPage;
    data_ = std::aligned_alloc(kPage, size_);
    if (data_ == nullptr) {
      size_ = 0;
      throw std::bad_alloc();
    }
  }
  return data_;
}

}  // namespace batchdeck
