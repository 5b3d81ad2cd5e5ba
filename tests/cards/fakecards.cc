// Cards made of host memory, for a TensorFlow that is built with CUDA, on a machine without a card.
//
// The device type is "GPU", so the placer, the memory types, the partitioner, the copies between devices and the
// profiler levels are those of real cards: the kernels that are looked up are the GPU ones of this build. Only when
// an op runs, the CPU kernel of the same op computes it. NcclAllReduce is emulated.
#include <dlfcn.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/local_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor.pb.h"
#include "tensorflow/core/graph/types.h"
#include "tensorflow/core/public/session_options.h"
#include "tensorflow/core/public/version.h"

namespace tensorflow {
namespace {

// What was copied: by source and target, how often and how many bytes; and how often nothing but the word that an op
// did not run, as those of a branch that is not taken. Whether that word comes in before a call ends is a matter of time.
struct Counted {
  int64_t number = 0, bytes = 0, dead = 0;
};
std::mutex counts_mu;
std::map<std::pair<std::string, std::string>, Counted> counts;

std::string Short(const Device* device) {
  return device->parsed_name().type + ":" + std::to_string(device->parsed_name().id);
}

void Count(const std::string& from, const std::string& to, const Tensor* tensor) {
  std::lock_guard<std::mutex> lock(counts_mu);
  Counted& entry = counts[{from, to}];
  entry.number += 1;
  entry.bytes += tensor->TotalBytes();
  entry.dead += tensor->data() == nullptr;
}

class Copies : public DeviceContext {
 public:
  static void Copy(const Tensor* from, Tensor* to) {
    if (DataTypeCanUseMemcpy(from->dtype()) && from->TotalBytes() > 0) {
      std::memcpy(const_cast<char*>(to->tensor_data().data()), from->tensor_data().data(), from->TotalBytes());
    } else {
      *to = *from;
    }
  }
  void CopyCPUTensorToDevice(const Tensor* cpu, Device* to, Tensor* device, StatusCallback done,
                             bool) const override {
    Count("CPU:0", Short(to), cpu);
    Copy(cpu, device);
    done(absl::OkStatus());
  }
  absl::Status ThenExecute(Device*, stream_executor::Stream*, std::function<void()> func) override {
    func();
    return absl::OkStatus();
  }
  void CopyTensorInSameDevice(const Tensor* in, Device*, Tensor* out, StatusCallback done) const override {
    Copy(in, out);
    done(absl::OkStatus());
  }
  void CopyDeviceTensorToCPU(const Tensor* device, absl::string_view, Device* from, Tensor* cpu,
                             StatusCallback done) override {
    Count(Short(from), "CPU:0", device);
    Copy(device, cpu);
    done(absl::OkStatus());
  }
};

void BetweenCards(DeviceContext*, DeviceContext*, Device* from, Device* to, AllocatorAttributes, AllocatorAttributes,
                  const Tensor* input, Tensor* output, int, StatusCallback done) {
  Count(Short(from), Short(to), input);
  Copies::Copy(input, output);
  done(absl::OkStatus());
}

// The copy between cards is registered by CUDA's devices, and the first registration counts: so it is led here.
bool redirected = [] {
  void* old = dlsym(RTLD_DEFAULT,
                    "_ZN10tensorflow7GPUUtil18DeviceToDeviceCopyEPNS_13DeviceContextES2_PNS_6DeviceES4_"
                    "N3tsl19AllocatorAttributesES6_PKNS_6TensorEPS7_iSt8functionIFvRKN4absl12lts_202508146StatusEEE");
  if (old == nullptr) return false;
  const uintptr_t page = reinterpret_cast<uintptr_t>(old) & ~uintptr_t{4095};
  mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
  unsigned char jump[12] = {0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0};
  void* ours = reinterpret_cast<void*>(&BetweenCards);
  std::memcpy(jump + 2, &ours, 8);
  std::memcpy(old, jump, 12);
  mprotect(reinterpret_cast<void*>(page), 8192, PROT_READ | PROT_EXEC);
  return true;
}();

// NcclAllReduce: participants meet by shared_name, step and iteration.
struct Meeting {
  std::vector<std::pair<OpKernelContext*, AsyncOpKernel::DoneCallback>> here;
};
std::mutex meeting_mu;
std::map<std::string, Meeting> meetings;

void AllReduce(const NodeDef& def, OpKernelContext* c, AsyncOpKernel::DoneCallback done) {
  const int wanted = def.attr().at("num_devices").i();
  const std::string key = def.attr().at("shared_name").s() + ";" + std::to_string(c->step_id()) + ";" +
                          std::to_string(c->frame_iter().frame_id) + ":" +
                          std::to_string(c->frame_iter().iter_id);
  std::vector<std::pair<OpKernelContext*, AsyncOpKernel::DoneCallback>> all;
  {
    std::lock_guard<std::mutex> lock(meeting_mu);
    Meeting& m = meetings[key];
    m.here.emplace_back(c, std::move(done));
    if (static_cast<int>(m.here.size()) < wanted) return;
    all = std::move(m.here);
    meetings.erase(key);
  }
  const int64_t n = all[0].first->input(0).NumElements();
  std::vector<float> sum(n, 0.f);
  for (auto& one : all) {
    const float* x = one.first->input(0).flat<float>().data();
    for (int64_t i = 0; i < n; ++i) sum[i] += x[i];
  }
  for (auto& one : all) {
    Tensor* out = nullptr;
    absl::Status s = one.first->allocate_output(0, one.first->input(0).shape(), &out);
    if (s.ok()) {
      std::memcpy(out->flat<float>().data(), sum.data(), n * sizeof(float));
    } else {
      one.first->SetStatus(s);
    }
    one.second();
  }
}

class FakeCard : public LocalDevice {
 public:
  FakeCard(const SessionOptions& options, const std::string& name, int index)
      : LocalDevice(options, Device::BuildDeviceAttributes(name, DeviceType("GPU"), Bytes(16LL << 30),
                                                           DeviceLocality(), "a card made of host memory")) {
    info_.default_context = &copies_;
    info_.gpu_id = index;
    copies_.Ref();
    set_tensorflow_accelerator_device_info(&info_);
  }

  Allocator* GetAllocator(AllocatorAttributes) override { return cpu_allocator(); }

  absl::Status MakeTensorFromProto(const TensorProto& proto, const AllocatorAttributes, Tensor* tensor) override {
    Tensor parsed(proto.dtype());
    if (!parsed.FromProto(cpu_allocator(), proto)) {
      return absl::InvalidArgumentError("cannot parse a constant");
    }
    // What orders ops is an empty constant. It has memory here, by which it is told from the word of an op that did not
    // run.
    const bool empty = parsed.NumElements() == 0 && parsed.dtype() == DT_FLOAT && parsed.dims() == 1;
    *tensor = empty ? Tensor(cpu_allocator(), DT_FLOAT, TensorShape({1})).Slice(0, 0) : std::move(parsed);
    return absl::OkStatus();
  }

  absl::Status Sync() override { return absl::OkStatus(); }

  absl::Status TryGetDeviceContext(DeviceContext** out) override {
    copies_.Ref();
    *out = &copies_;
    return absl::OkStatus();
  }

  void Compute(OpKernel* kernel, OpKernelContext* c) override {
    OpKernel* own = Own(kernel, c);
    if (own == nullptr) return;
    if (AsyncOpKernel* async = own->AsAsync()) {
      std::mutex mu;
      std::condition_variable cv;
      bool over = false;
      async->ComputeAsync(c, [&] {
        std::lock_guard<std::mutex> lock(mu);
        over = true;
        cv.notify_all();
      });
      std::unique_lock<std::mutex> lock(mu);
      cv.wait(lock, [&] { return over; });
      return;
    }
    own->Compute(c);
  }

  void ComputeAsync(AsyncOpKernel* kernel, OpKernelContext* c, AsyncOpKernel::DoneCallback done) override {
    if (kernel->type_string() == "NcclAllReduce") {
      AllReduce(kernel->def(), c, std::move(done));
      return;
    }
    OpKernel* own = Own(kernel, c);
    if (own == nullptr) {
      done();
      return;
    }
    if (AsyncOpKernel* async = own->AsAsync()) {
      async->ComputeAsync(c, std::move(done));
    } else {
      own->Compute(c);
      done();
    }
  }

 private:
  // The kernel itself where it is the same class for the CPU, else the CPU's.
  OpKernel* Own(OpKernel* kernel, OpKernelContext* c) {
    std::lock_guard<std::mutex> lock(mu_);
    // TensorFlow frees kernels and functions: another may be at the same address by now.
    const std::string what = kernel->def().SerializeAsString();
    auto found = own_.find(kernel);
    if (found != own_.end() && found->second.what == what && found->second.library == c->function_library()) {
      return found->second.kernel ? found->second.kernel.get() : kernel;
    }
    const KernelDef* gpu = nullptr;
    const KernelDef* cpu = nullptr;
    std::string gpu_class, cpu_class;
    absl::Status a = FindKernelDef(DeviceType("GPU"), kernel->def(), &gpu, &gpu_class);
    absl::Status b = FindKernelDef(DeviceType("CPU"), kernel->def(), &cpu, &cpu_class);
    std::unique_ptr<OpKernel> other;
    if (b.ok() && !(a.ok() && gpu_class == cpu_class)) {
      std::shared_ptr<const NodeProperties> props;
      absl::Status s = NodeProperties::CreateFromNodeDef(kernel->def(), OpRegistry::Global(), &props);
      OpKernel* made = nullptr;
      if (s.ok()) {
        s = CreateOpKernel(DeviceType("CPU"), this, cpu_allocator(), c->function_library(), resource_manager(), props,
                           TF_GRAPH_DEF_VERSION, &made);
      }
      if (!s.ok()) {
        c->SetStatus(s);
        return nullptr;
      }
      other.reset(made);
    } else if (!b.ok()) {
      c->SetStatus(absl::UnimplementedError("fake card: no CPU kernel for " + kernel->type_string()));
      return nullptr;
    }
    OpKernel* result = other ? other.get() : kernel;
    Counterpart& entry = own_[kernel];
    if (entry.kernel) retired_.push_back(std::move(entry.kernel));  // it may be at work
    entry.what = what;
    entry.library = c->function_library();
    entry.kernel = std::move(other);
    return result;
  }

  struct Counterpart {
    std::string what;
    FunctionLibraryRuntime* library = nullptr;
    std::unique_ptr<OpKernel> kernel;  // none where the card's own serves
  };

  Copies copies_;
  AcceleratorDeviceInfo info_;
  std::mutex mu_;
  std::unordered_map<OpKernel*, Counterpart> own_;
  std::vector<std::unique_ptr<OpKernel>> retired_;
};

int Cards() {
  const char* text = std::getenv("FAKE_CARDS");
  return text ? std::atoi(text) : 2;
}

class FakeCards : public DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    for (int i = 0; i < Cards(); ++i) devices->push_back("/physical_device:GPU:" + std::to_string(i));
    return absl::OkStatus();
  }
  absl::Status CreateDevices(const SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<Device>>* devices) override {
    for (int i = 0; i < Cards(); ++i) {
      devices->push_back(std::make_unique<FakeCard>(options, prefix + "/device:GPU:" + std::to_string(i), i));
    }
    return absl::OkStatus();
  }
};

bool registered = [] {
  DeviceFactory::Register("GPU", std::make_unique<FakeCards>(), 250, /*is_pluggable_device=*/false);
  return true;
}();

}  // namespace

// Whether copies between cards are led here: the name of the function is that of one version of TensorFlow.
extern "C" int fake_cards_redirected() { return redirected ? 1 : 0; }

extern "C" const char* fake_cards_counts(int reset) {
  static std::string text;
  std::lock_guard<std::mutex> lock(counts_mu);
  text.clear();
  for (const auto& one : counts) {
    text += one.first.first + " " + one.first.second + " " + std::to_string(one.second.number) + " " +
            std::to_string(one.second.bytes) + " " + std::to_string(one.second.dead) + "\n";
  }
  if (reset) counts.clear();
  return text.c_str();
}

}  // namespace tensorflow
