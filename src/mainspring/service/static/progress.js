// <script src="https://jobs.example/static/progress.js" data-job="…" data-token="msp_…"></script>, or
// <mainspring-progress job="…" token="msp_…"></mainspring-progress>. See docs/service-browser.md.
(() => {
  const script = document.currentScript
  const home = script ? script.src.replace(/\/static\/[^/]*$/, '') : ''
  const TEXTS = { pending: 'Waiting', retrying: 'Waiting to try again', suspended: 'Waiting', running: 'Running',
    completed: 'Done', dead_letter: 'Failed', cancelled: 'Cancelled', error: 'Not available' }
  const MOST_STREAMS = 4 // of a page: browsers open six connections to a host, and the page needs some itself
  let streams = 0

  class Progress extends HTMLElement {
    static observedAttributes = ['job', 'token']

    attributeChangedCallback () { // a new token, or another job
      if (this.isConnected && this.ending?.signal.aborted) this.connectedCallback()
    }

    connectedCallback () {
      this.ending = new AbortController()
      this.failures = 0
      this.texts = { ...TEXTS, ...JSON.parse(this.getAttribute('texts') || '{}') }
      if (!this.bar) {
        this.bar = this.appendChild(document.createElement('progress'))
        this.bar.setAttribute('role', 'progressbar')
        this.bar.setAttribute('aria-label', this.getAttribute('label') || 'Progress')
        this.append(' ')
        this.note = this.appendChild(document.createElement('span'))
      }
      this.poll()
      this.follow()
    }

    disconnectedCallback () {
      this.ending.abort()
    }

    get (path, headers) {
      const url = (this.getAttribute('src') || home) + '/v1/public/' + path
      headers = { ...headers, authorization: 'Bearer ' + this.getAttribute('token') }
      return fetch(url, { headers, credentials: 'omit', cache: 'no-store', signal: this.ending.signal })
    }

    // Read the job again and again: often without a stream, and now and then with one, as starts have no event.
    async poll () {
      const { signal } = this.ending
      while (!signal.aborted) {
        await this.read().catch(() => { this.failures++ })
        await sleep(this.streams ? 10000 : Math.min(2000 * 2 ** this.failures, 60000), signal)
      }
    }

    async read () {
      const answer = await this.get('jobs/' + encodeURIComponent(this.getAttribute('job')))
      if ([401, 403, 404, 422].includes(answer.status)) return this.fail(answer)
      if (!answer.ok) throw answer
      this.failures = 0
      this.show(await answer.json())
    }

    async follow () {
      const { signal } = this.ending
      while (!signal.aborted && streams < MOST_STREAMS) {
        streams++
        await this.stream().catch(() => {})
        streams--
        this.streams = false
        await sleep((this.retry || 2000) * (1 + Math.random()), signal)
      }
    }

    async stream () {
      const answer = await this.get('events?job=' + encodeURIComponent(this.getAttribute('job')),
        this.last ? { 'last-event-id': this.last } : {})
      if (!answer.ok) return
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader()
      let text = ''
      for (let part; !(part = await reader.read()).done;) {
        const frames = (text + part.value).split('\n\n')
        text = frames.pop()
        for (const frame of frames) this.take(Object.fromEntries(frame.split('\n').map(line => line.split(/: (.*)/s))))
      }
    }

    take ({ id, event, data, retry }) {
      this.last = id || this.last
      this.retry = +retry || this.retry
      this.streams = event !== 'end'
      if (event === 'progressed' && this.job) this.show({ ...this.job, status: 'running', progress: JSON.parse(data) })
      else if (event && event !== 'end') this.read().catch(() => {})
    }

    show (job) {
      if (this.ending.signal.aborted) return
      const { fraction, note } = job.progress || {}
      this.job = job
      if (job.status === 'completed') this.bar.value = 1
      else if (fraction == null) this.bar.removeAttribute('value')
      else this.bar.value = fraction
      if (job.done && job.status !== 'completed') this.bar.value = fraction || 0
      const percent = job.done || fraction == null ? '' : ` ${Math.round(fraction * 100)} %`
      this.say(job.status, this.texts[job.status] + percent + (note && !job.done ? ' – ' + note : ''), job.done)
      this.tell('update', job)
      if (job.done) this.end('end', job)
    }

    say (state, text, isLast) {
      this.setAttribute('state', state)
      this.bar.setAttribute('aria-valuetext', text)
      this.note.setAttribute('aria-live', isLast ? 'polite' : 'off') // screen readers read the end aloud, not each step
      if (this.note.textContent !== text) this.note.textContent = text
    }

    async fail (answer) {
      const problem = await answer.json().catch(() => ({}))
      this.say('error', this.texts.error, true)
      this.end('error', { status: answer.status, code: problem.code, detail: problem.detail })
    }

    end (name, detail) {
      this.ending.abort()
      this.tell(name, detail)
    }

    tell (name, detail) {
      this.dispatchEvent(new CustomEvent('mainspring:' + name, { detail, bubbles: true }))
    }
  }

  const sleep = (time, signal) => new Promise(resolve => {
    setTimeout(resolve, time)
    signal.addEventListener('abort', resolve)
  })

  customElements.get('mainspring-progress') || customElements.define('mainspring-progress', Progress)
  if (script && script.dataset.job) {
    const element = document.createElement('mainspring-progress')
    for (const [name, value] of Object.entries(script.dataset)) element.setAttribute(name, value)
    script.after(element)
  }
})()
