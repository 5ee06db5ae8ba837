-- Load for wrk. `post`: about 1000 pre-generated V2 requests, all different; `post1k`: the same with bodies of 1 KB;
-- `traced`: as `post`, and one traceparent of a hundred is sampled; `get`: one tiny request; `upload`: a 600 KB tensor; any other word is the target of a GET.
local variants, at = {}, 0

local function hex(digits)
  local out = {}
  for i = 1, digits do out[i] = string.format("%x", math.random(0, 15)) end
  return table.concat(out)
end

local function body(id, count)
  local rows = math.random(1, 4)
  local numbers = {}
  for i = 1, count do numbers[i] = string.format("%.3f", math.random()) end
  return string.format(
    '{"id":"%s","inputs":[{"name":"input","shape":[%d,%d],"datatype":"FP32","data":[%s]}]}',
    id, rows, #numbers, table.concat(numbers, ","))
end

local function post(fewest, flags)
  local id = hex(32)
  return wrk.format("POST", "/v2/models/resnet/infer", {
    ["Host"] = "resnet.localhost",
    ["User-Agent"] = "bench/1.0",
    ["Accept"] = "application/json",
    ["Accept-Encoding"] = "gzip, deflate",
    ["Content-Type"] = "application/json",
    ["Authorization"] = "Bearer " .. hex(40),
    ["X-Request-Id"] = id,
    ["traceparent"] = "00-" .. hex(32) .. "-" .. hex(16) .. "-" .. flags,
  }, body(id, fewest + math.random(0, 16)))
end

local function upload()
  local header = '{"inputs":[{"name":"input","shape":[1,3,224,224],"datatype":"FP32",' ..
    '"parameters":{"binary_data_size":602112}}]}'
  return wrk.format("POST", "/v2/models/resnet/infer", {
    ["Host"] = "resnet.localhost",
    ["Content-Type"] = "application/octet-stream",
    ["Inference-Header-Content-Length"] = tostring(#header),
  }, header .. string.rep("\1\2\3\4", 602112 / 4))
end

function init(args)
  local kind = args[1]
  math.randomseed(42)
  if kind == "post" or kind == "post1k" then
    for i = 1, 1000 do variants[i] = post(kind == "post" and 24 or 145, "01") end
  elseif kind == "traced" then
    for i = 1, 1000 do variants[i] = post(24, i % 100 == 0 and "01" or "00") end
  elseif kind == "upload" then
    variants[1] = upload()
  else
    variants[1] = wrk.format("GET", kind == "get" and "/" or kind)
  end
end

function request()
  at = at % #variants + 1
  return variants[at]
end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "bytes": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "errors": %d}\n',
    summary.requests, summary.bytes, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
